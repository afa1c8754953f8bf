#!/usr/bin/env bash
# Builds a release of the commit that is checked out, as make release: archives, deb, rpm,
# SBOMs and checksums into dist/, and an image if there is Docker. Two runs give the
# same bytes (check.sh): everything bears the commit's time.
#
# It needs GNU tar. SIGNING_KEY is the file of the SSH key that signs SHA256SUMS. VERSION is by default the tag v… of the commit, else 0.0.0-git.DATE.COMMIT.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(mkdir -p "${1:-dist}" && cd "${1:-dist}" && pwd)
limit=30000000 # bytes of a binary

[[ -z $(git status --porcelain) ]] || echo "warning: what is not committed is not in the release" >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git clone --quiet --no-hardlinks . "$work/src"
cd "$work/src"
commit=$(git rev-parse HEAD)
export SOURCE_DATE_EPOCH VERSION # for nfpm
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
DATE=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null || true)
VERSION=${VERSION:-${tag#v}}
VERSION=${VERSION:-0.0.0-git.$(date -u -d "$DATE" +%Y%m%d).${commit:0:12}}
rm -rf "${dist:?}"/*
echo "fencelock $VERSION of $DATE, commit $commit"

tool() { (cd release && GOWORK=off go build -o "$work/$1" "$2"); }
tool nfpm github.com/goreleaser/nfpm/v2/cmd/nfpm
tool sbom ./sbom
go build -o "$work/notices" ./internal/notices

version=github.com/fencelock/fencelock/cmd/fencelock/internal/version
stamp="-X $version.releaseVersion=v$VERSION -X $version.releaseCommit=$commit -X $version.releaseDate=$DATE"
build() { CGO_ENABLED=0 GOOS=$1 GOARCH=$2 go build -trimpath -tags grpcnotrace -ldflags "-s -w -buildid= $stamp" -o "$3" ./cmd/fencelock; }

# archive packs a folder, reproducibly.
archive() { tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$work" -c "$1" | gzip -9n >"$dist/$1.tar.gz"; }

# The man page and the completions, of a program for this machine.
build "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)" "$work/program"
mkdir "$work/share"
release/manpage.sh "$work/program" "$VERSION" "${DATE%T*}" | gzip -9n >"$work/share/fencelock.1.gz"
for shell in bash zsh fish; do "$work/program" completion "$shell" >"$work/share/fencelock.$shell"; done

for target in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
	os=${target%/*} ARCH=${target#*/}
	name=fencelock_${VERSION}_${os}_$ARCH
	mkdir "$work/$name"
	build "$os" "$ARCH" "$work/$name/fencelock"
	size=$(stat -c %s "$work/$name/fencelock")
	printf "%-14s %4.1f MB\n" "$target" "$(awk -v n="$size" 'BEGIN {print n / 1000000}')"
	((size < limit)) || { echo "the binary has more than $limit bytes" >&2; exit 1; }
	"$work/sbom" "$work/$name/fencelock" "v$VERSION" "$commit" "$DATE" >"$dist/$name.cdx.json"
	"$work/notices" "$work/$name/fencelock" >"$work/$name/THIRD_PARTY_NOTICES"
	cp LICENSE README.md CHANGELOG.md "$work/$name"
	cp -r "$work/share" "$work/$name/share"
	if [[ $os == linux ]]; then
		cp deploy/systemd/fencelock.service deploy/systemd/fencelock.env "$work/$name"
		export ARCH DIST=$work/package-$ARCH
		mkdir "$DIST"
		cp "$work/$name/fencelock" "$work/$name/THIRD_PARTY_NOTICES" "$work"/share/* "$DIST"
		# Its first lines say how to install it by hand.
		sed -e '/^# \(install\|systemctl\)/d' -e 's,/usr/local/bin,/usr/bin,' deploy/systemd/fencelock.service >"$DIST/fencelock.service"
		for kind in deb rpm; do
			"$work/nfpm" package --config release/nfpm.yaml --packager "$kind" --target "$dist" >"$work/log" || { cat "$work/log" >&2; exit 1; }
		done
	fi
	archive "$name"
done
(cd "$dist" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
# An SSH key: ssh-keygen -Y verify needs nothing that is not on every machine.
if [[ -n ${SIGNING_KEY:-} ]]; then
	ssh-keygen -q -Y sign -n fencelock-release -f "$SIGNING_KEY" "$dist/SHA256SUMS"
else
	echo "SHA256SUMS is not signed: SIGNING_KEY names no key"
fi

if docker info >/dev/null 2>&1; then
	mkdir -p "$work/image/data" "$work/image/licenses"
	built=$work/fencelock_${VERSION}_linux_$(go env GOARCH)
	cp "$built/fencelock" "$work/image"
	cp "$built/LICENSE" "$built/THIRD_PARTY_NOTICES" "$work/image/licenses"
	docker build --quiet -f release/Dockerfile --build-arg VERSION="$VERSION" --build-arg REVISION="$commit" -t "fencelock:$VERSION" -t fencelock "$work/image" >/dev/null
	echo "image fencelock:$VERSION, and fencelock"
else
	echo "no image: there is no Docker"
fi
echo "in $dist:"
ls -l "$dist" | awk 'NR > 1 {printf "  %9d  %s\n", $5, $9}'
