#!/bin/sh
# Makes dist, which is committed so that npm installs this folder without a network:
#   clients/typescript/build.sh [FOLDER]
# TSC names the compiler; its version is the one in typescript_test.go.
# In Node both module systems load the CommonJS modules, so that a class is the same in both; esm is for browsers and bundlers.
set -eu
out=$(mkdir -p "${1:-$(dirname "$0")/dist}" && cd "${1:-$(dirname "$0")/dist}" && pwd)
cd "$(dirname "$0")"
rm -rf "$out/esm" "$out/cjs"
${TSC:-tsc} --outDir "$out/esm" --declaration false
rm "$out/esm/testing.js"
${TSC:-tsc} --outDir "$out/cjs" --module commonjs
echo '{ "type": "module" }' >"$out/esm/package.json"
for module in index testing; do
	names=$(node -p "Object.keys(require('$out/cjs/$module.js')).join(', ')")
	echo "export { $names } from './cjs/$module.js';" >"$out/$module.mjs"
	echo "export * from './cjs/$module.js';" >"$out/$module.d.mts"
done
