#!/usr/bin/env bash
# Tries a release, as make release-check, as root on Debian with debootstrap and rpm:
# builds of two hosts give the same bytes; the deb is installed, started, upgraded, removed and
# purged in a clean root; the rpm is installed and removed in another; the image runs.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
root=$work/root
server=
end() {
	[[ -z $server ]] || kill "$server" 2>/dev/null || true
	docker rm -f fencelock-release-check >/dev/null 2>&1 || true
	docker volume rm fencelock-release-check >/dev/null 2>&1 || true
	docker rmi fencelock-release-check >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap end EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
say() { printf '%3d s  %s\n' "$SECONDS" "$*"; }
for program in debootstrap rpm docker curl; do command -v "$program" >/dev/null || fail "$program is not installed"; done

# page is the block of docs/how-to/install.md whose first command is the named one.
page() {
	local block
	block=$(awk -v word="$1" '/^```sh/ {block = ""; next} /^```/ {if (index(block, word " ") == 1) {printf "%s", block; exit}; next} {block = block $0 "\n"}' docs/how-to/install.md)
	[[ -n $block ]] || fail "docs/how-to/install.md has no command $1"
	printf '%s' "$block"
}

release/build.sh "$work/one"
VERSION=$(sed -nE 's/.*fencelock_(.*)_linux_amd64.tar.gz/\1/p' "$work/one/SHA256SUMS")
unshare --uts sh -c 'hostname another && exec release/build.sh "$1"' - "$work/two" >/dev/null
diff "$work/one/SHA256SUMS" "$work/two/SHA256SUMS" || fail "builds of two hosts differ"
(cd "$work/one" && sha256sum --quiet -c SHA256SUMS)
say "builds of two hosts are the same, byte by byte"
VERSION=9.0.0 release/build.sh "$work/next" >/dev/null

arch=$(dpkg --print-architecture)
# deb runs the page's command in the root, on the packages of a build.
deb() {
	rm -rf "$root/tmp/dist" && mkdir "$root/tmp/dist" && cp "$work/$1"/fencelock_*_"$arch".deb "$root/tmp/dist"
	chroot "$root" sh -ec "cd /tmp; $(page dpkg)" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$(page dpkg)"; }
}

# serves runs the unit's command as it is, in the root, as a user without rights.
serves() {
	local command
	command=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/fencelock.service")
	mkdir -p "$root/var/lib/fencelock" && chown 65534:65534 "$root/var/lib/fencelock"
	# shellcheck disable=SC2086
	(cd / && exec env -i FENCELOCK_LISTEN=127.0.0.1:18090 FENCELOCK_ADMIN_LISTEN=127.0.0.1:0 FENCELOCK_DATA=/var/lib/fencelock/fencelock.db \
		"$(command -v chroot)" --userspec=65534:65534 "$root" $command) >"$work/log" 2>&1 &
	server=$!
	curl -sf --retry 50 --retry-delay 1 --retry-connrefused --retry-all-errors -o /dev/null http://127.0.0.1:18090/readyz || { cat "$work/log" >&2; fail "$1: not ready"; }
	curl -sf -X POST http://127.0.0.1:18090/locks -H 'Content-Type: application/json' -d '{"resource":"orders/42","ttl_ms":1000}' | grep -q '"fencing_token"' || fail "$1: no lease"
	kill "$server" && wait "$server" || true
	server=
	say "$1: ready, and grants a lease"
}

debootstrap --variant=minbase bookworm "$root" >"$work/log" 2>&1 || { tail -3 "$work/log" >&2; fail debootstrap; }
say "a clean Debian"
deb one
[[ $(chroot "$root" /usr/bin/fencelock version) == "fencelock "* ]] || fail "fencelock version"
[[ $(stat -c '%a %U' "$root/etc/fencelock/fencelock.env") == "600 root" ]] || fail "the configuration can be read"
for file in share/man/man1/fencelock.1.gz share/bash-completion/completions/fencelock share/zsh/vendor-completions/_fencelock share/fish/vendor_completions.d/fencelock.fish share/doc/fencelock/copyright share/doc/fencelock/THIRD_PARTY_NOTICES; do
	[[ -s $root/usr/$file ]] || fail "the deb lacks /usr/$file"
done
serves "installed"
echo 'FENCELOCK_LOG_LEVEL=warn' >>"$root/etc/fencelock/fencelock.env"
deb next
chroot "$root" dpkg -s fencelock | grep -qx 'Version: 9.0.0' || fail "the version after the upgrade"
grep -q LOG_LEVEL=warn "$root/etc/fencelock/fencelock.env" || fail "the upgrade changed the configuration"
serves "upgraded, with the configuration that it had"
chroot "$root" dpkg -r fencelock >/dev/null
[[ ! -e $root/usr/bin/fencelock && -e $root/etc/fencelock/fencelock.env ]] || fail "the removal"
chroot "$root" dpkg -P fencelock >/dev/null
[[ ! -e $root/etc/fencelock && -e $root/var/lib/fencelock/fencelock.db ]] || fail "the purge"
say "removed: the configuration stays; purged: it goes; the state stays"

mkdir "$work/rpm"
mv "$work/one" "$work/dist"
rpm() { command rpm --root "$work/rpm" --dbpath /rpmdb --noscripts --nodeps "$@"; }
(cd "$work" && eval "$(cd "$OLDPWD" && page rpm)")
[[ -x $work/rpm/usr/bin/fencelock && -f $work/rpm/etc/fencelock/fencelock.env && -s $work/rpm/usr/share/doc/fencelock/THIRD_PARTY_NOTICES ]] || fail "the rpm lacks files"
rpm -e fencelock
[[ ! -e $work/rpm/usr/bin/fencelock ]] || fail "the rpm's removal"
say "the rpm is installed and removed"

docker tag "fencelock:$VERSION" fencelock-release-check
eval "$(page docker | sed -e 's/--name fencelock/&-release-check/' -e 's/127.0.0.1:8080/127.0.0.1:18091/' -e 's/ -v fencelock:/ -v fencelock-release-check:/' -e 's/ fencelock$/ fencelock-release-check/')" >/dev/null
curl -sf --retry 50 --retry-delay 1 --retry-connrefused --retry-all-errors -o /dev/null http://127.0.0.1:18091/readyz || { docker logs fencelock-release-check >&2; fail "the image: not ready"; }
docker exec fencelock-release-check /fencelock healthcheck || fail "healthcheck in the image"
files=$(docker export fencelock-release-check | tar -t | grep -vE '^(dev|etc|proc|sys|\.dockerenv)' | sort | tr '\n' ' ')
[[ $files == "data/ fencelock licenses/ licenses/LICENSE licenses/THIRD_PARTY_NOTICES "* ]] || fail "the image has $files"
say "the image runs, read-only, of $(docker image inspect -f '{{.Size}}' "fencelock:$VERSION") bytes: $files"
