#!/usr/bin/env bash
# Installs what a release offers as its users do, as make install-check, without a network: the
# command and the Go modules from a tagged clone, by way of a module proxy of files; the
# Python client by pip, from a wheel and an sdist; the TypeScript client by npm, in ESM and CommonJS.
set -euo pipefail
cd "$(dirname "$0")/.."
product=github.com/fencelock/fencelock
version=$(sed -nE "s,^\t?$product/client v,,p" go.work | sed 's, .*,,')
work=$(mktemp -d)
end() { chmod -R u+w "$work" && rm -rf "$work"; }
trap end EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
say() { printf '%3d s  %s\n' "$SECONDS" "$*"; }
has() { grep -qF -- "$1" <<<"$2" || fail "no \"$1\" in: $2"; }

# The tags of the release, on a clone of what is committed.
git clone --quiet --no-hardlinks . "$work/clone"
for module in "" api/wire client client/gocronlock fencing fencing/fencinggrpc migrations storage/mysqlguard storage/pgguard; do
	git -C "$work/clone" -c user.name=check -c user.email=check@localhost tag -f "${module:+$module/}v$version" >/dev/null
done

# Go makes the modules of the tags itself, with its own rules of what a module may contain,
# into a cache that has the layout of a proxy.
cached=$(go env GOMODCACHE)/cache/download
export GOWORK=off GOFLAGS=-mod=mod GOSUMDB=off GOTOOLCHAIN=local
(
	export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/clone.insteadOf" GIT_CONFIG_VALUE_0=https://$product
	export GOMODCACHE=$work/tags GOPROXY=file://$cached GONOPROXY=$product
	cd "$work"
	for module in "" /api/wire /client /fencing /fencing/fencinggrpc /migrations /storage/mysqlguard /storage/pgguard; do
		go mod download "$product$module@v$version"
	done
)
export GOPROXY=file://$work/tags/cache/download,file://$cached GOMODCACHE=$work/cache
say "a module proxy of the tags v$version"

GOBIN=$work/bin go install "$product/cmd/fencelock@v$version"
says=$("$work/bin/fencelock" version)
has "fencelock v$version (" "$says"
say "go install: $says"

mkdir "$work/application"
(
	cd "$work/application"
	go mod init example.com/application 2>"$work/log"
	for module in client fencing fencing/fencinggrpc storage/pgguard storage/mysqlguard; do
		go get "$product/$module@v$version" 2>"$work/log" || { cat "$work/log" >&2; fail "go get $module"; }
	done
	printf 'package main\n\nimport (\n\t"fmt"\n\n\t_ "%s/client"\n\t_ "%s/storage/mysqlguard"\n\t_ "%s/storage/pgguard"\n)\n\nfunc main() { fmt.Println("built") }\n' "$product" "$product" "$product" >main.go
	[[ $(go run .) == built ]] || fail "an application does not build"
	go list -m all | grep -q prometheus && fail "the client brings the server's dependencies" || true
)
say "go get: the client and the guards"

python=${PYTHON:-/usr/bin/python3}
mkdir "$work/dist"
(
	cd "$work/clone/clients/python"
	"$python" -m hatchling build -d "$work/dist" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "hatchling builds no package (Debian: python3-hatchling)"; }
)
for file in "fencelock-$version-py3-none-any.whl" "fencelock-$version.tar.gz"; do
	[[ -f $work/dist/$file ]] || fail "no $file but $(ls "$work/dist")"
	"$python" -m venv --system-site-packages "$work/venv" # the build backend is the system's
	"$work/venv/bin/pip" install --quiet --no-index --no-build-isolation --disable-pip-version-check "$work/dist/$file"
	has "$version" "$(cd / && "$work/venv/bin/python" -c 'import fencelock, importlib.metadata; fencelock.Client; print(importlib.metadata.version("fencelock"))')"
	rm -rf "$work/venv"
	say "pip install $file"
done

compiler=${TSC:-$(command -v tsc || echo node /usr/share/nodejs/typescript/bin/tsc)}
tarball=$(cd "$work/clone/clients/typescript" && TSC=$compiler npm pack --silent --pack-destination "$work/dist")
[[ $tarball == fencelock-$version.tgz ]] || fail "npm pack made $tarball"
mkdir "$work/node"
(
	cd "$work/node"
	echo '{ "private": true }' >package.json
	npm install --silent --offline --no-audit --no-fund "$work/dist/$tarball"
	echo 'const { Client } = require("fencelock"); if (typeof Client !== "function") throw new Error("no Client")' >a.cjs
	echo 'import { Client } from "fencelock"; if (typeof Client !== "function") throw new Error("no Client")' >b.mjs
	node a.cjs
	node b.mjs
	cp b.mjs c.mts
	cp b.mjs d.cts
	# A type that is not the package's has to be refused, or there are no types at all.
	echo 'import { Client } from "fencelock"; const wrong: number = Client; export { wrong }' >wrong.mts
	check() {
		printf '{ "compilerOptions": { "noEmit": true, "strict": true, "module": "nodenext", "target": "es2022", "types": [] }, "files": ["%s", "%s"] }\n' "$1" "${2:-$1}" >tsconfig.json
		$compiler -p .
	}
	check c.mts d.cts || fail "the package's types, in ESM or CommonJS"
	check wrong.mts >/dev/null && fail "the package has no types" || true
)
say "npm install $tarball: ESM, CommonJS, types"
