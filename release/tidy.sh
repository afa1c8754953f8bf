#!/usr/bin/env bash
# go mod tidy of every module of a release, with the others from the working tree, as
# release/tidy.sh [-diff]. The modules require a version that may not be published yet, and go mod
# tidy knows no workspace: so it works on a copy of go.mod that has replace.
set -euo pipefail
cd "$(dirname "$0")/.."
product=github.com/fencelock/fencelock
modules=(. api/wire client client/gocronlock fencing fencing/fencinggrpc migrations storage/mysqlguard storage/pgguard)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
replaces=() drops=()
for module in "${modules[@]}"; do
	path=$product${module:+/$module}
	path=${path%/.}
	replaces+=("-replace=$path=$PWD/$module")
	drops+=("-dropreplace=$path")
done
for module in "${modules[@]}"; do
	cp "$module/go.mod" "$work/go.mod"
	if [[ -f $module/go.sum ]]; then cp "$module/go.sum" "$work"; else : >"$work/go.sum"; fi
	go mod edit "${replaces[@]}" "$work/go.mod"
	(cd "$module" && GOWORK=off go mod tidy -modfile="$work/go.mod" "$@") || { echo "$module/go.mod: run release/tidy.sh" >&2; exit 1; }
	[[ $# -eq 0 ]] || continue
	go mod edit "${drops[@]}" "$work/go.mod"
	go mod edit -fmt "$work/go.mod"
	cp "$work/go.mod" "$module/go.mod"
	[[ ! -s $work/go.sum ]] || cp "$work/go.sum" "$module/go.sum"
done
