#!/bin/sh
# Makes dist, which is committed so that npm installs this folder without a network:
#   clients/typescript/build.sh [FOLDER]
# TSC names the compiler; its version is the one in tests/compiler.txt.
set -eu
out=$(mkdir -p "${1:-$(dirname "$0")/dist}" && cd "${1:-$(dirname "$0")/dist}" && pwd)
cd "$(dirname "$0")"
rm -rf "$out/esm" "$out/cjs"
${TSC:-tsc} --outDir "$out/esm"
${TSC:-tsc} --outDir "$out/cjs" --module commonjs
echo '{ "type": "module" }' >"$out/esm/package.json"
