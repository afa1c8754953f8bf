#!/usr/bin/env bash
# Gets the servers of three Debian releases, once, into FOLDER: roots.sh FOLDER. Nothing is
# installed. Packages are downloaded with all that they depend on, unpacked, and their
# programs point to the libraries of their own release, so that they run side by side.
# FOLDER/bin/NAME then has the programs of a server, for PATH. Needs Debian's apt and keys.
set -euo pipefail
cache=$1
mirror=${MATRIX_MIRROR:-http://deb.debian.org/debian}

# packages RELEASE PACKAGE…: downloads them and what they depend on, and unpacks all.
packages() {
	local release=$1 root=$cache/$1 apt=$cache/$1.apt
	shift
	[[ ! -e $root/complete ]] || return 0
	echo "roots: $release: $*"
	rm -rf "$root" "$apt"
	mkdir -p "$root" "$apt"/{lists,archives}/partial "$apt"/etc/{preferences.d,apt.conf.d}
	: >"$apt/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main" >"$apt/sources.list"
	local options=(-qq -o "Dir::Etc=$apt/etc" -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State=$apt" -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false)
	apt-get "${options[@]}" update
	apt-get "${options[@]}" install -y --no-install-recommends --download-only "$@" >/dev/null
	for deb in "$apt"/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --keep-directory-symlink --no-same-owner; done
	rm -rf "$apt"
	touch "$root/complete"
}

# loader ROOT: its program interpreter; where it is differs, and its links are absolute.
loader() { ls "$1"{/usr,}/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 2>/dev/null | head -1; }

# native ROOT FILE…: makes programs and libraries find the libraries of their root.
native() {
	local root=$1 file
	local libraries=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
	shift
	for file; do
		file=$(readlink -f "$file")
		patchelf --force-rpath --set-rpath "$libraries" "$file"
		[[ $file == *.so* ]] || patchelf --set-interpreter "$(loader "$root")" "$file"
	done
}

# bin NAME PROGRAM…: links in FOLDER/bin/NAME; PROGRAM is a path, or as=path.
bin() {
	local name=$1 program
	shift
	mkdir -p "$cache/bin/$name"
	for program; do ln -sfn "${program#*=}" "$cache/bin/$name/$(basename "${program%%=*}")"; done
}

redis() { # NAME ROOT PROGRAM
	native "$2" "$2/usr/bin/$3"
	bin "$1" "redis-server=$2/usr/bin/$3"
}

postgres() { # NAME ROOT VERSION
	local dir=$2/usr/lib/postgresql/$3
	native "$2" "$dir"/bin/{postgres,initdb,pg_basebackup,pg_ctl,psql,pg_dump,pg_restore} "$dir"/lib/*.so
	bin "$1" "$dir"/bin/{postgres,initdb,pg_basebackup,pg_ctl,psql,pg_dump,pg_restore}
}

mariadb() { # NAME ROOT
	native "$2" "$2"/usr/sbin/mariadbd "$2"/usr/bin/{mariadb,my_print_defaults,resolveip}
	mkdir -p "$cache/bin/$1"
	local program
	for program in sbin/mariadbd bin/mariadb-install-db; do # their options begin with --no-defaults
		printf '#!/bin/bash\nexec "%s" "$1" --basedir="%s" "${@:2}"\n' "$2/usr/$program" "$2/usr" >"$cache/bin/$1/${program#*/}"
		chmod +x "$cache/bin/$1/${program#*/}"
	done
	bin "$1" "$2/usr/bin/mariadb"
}

zookeeper() { # NAME ROOT; the class path is for FENCELOCK_TEST_ZOOKEEPER
	mkdir -p "$cache/bin/$1"
	# The jar of zookeeper itself is last: it names those of /usr/share/java, of another version.
	printf "%s:" "$2"/usr/share/java/{zookeeper-jute,slf4j-api,slf4j-simple,commons-cli,commons-io,metrics-core,snappy-java,netty-{buffer,common,handler,transport}}.jar >"$cache/bin/$1/classpath"
	echo "$2/usr/share/java/zookeeper.jar" >>"$cache/bin/$1/classpath"
	zcat "$2/usr/share/doc/libzookeeper-java/changelog.Debian.gz" | sed -nE '1s/.*\(([0-9.]+).*/\1/p' >"$cache/bin/$1/version"
}

mkdir -p "$cache"
[[ ! -e $cache/complete ]] || exit 0
[[ $(uname -m) == x86_64 ]] || { echo "roots: for x86_64 only" >&2; exit 1; }
packages bullseye postgresql-13
packages bookworm patchelf redis-server postgresql-15 mariadb-server etcd-server etcd-client libzookeeper-java libslf4j-java
packages trixie redis-server valkey-server postgresql-17 mariadb-server etcd-server etcd-client libzookeeper-java libslf4j-java
old=$cache/bullseye stable=$cache/bookworm new=$cache/trixie
patchelf() { LD_LIBRARY_PATH=$stable/usr/lib/x86_64-linux-gnu:$stable/lib/x86_64-linux-gnu "$(loader "$stable")" "$stable/usr/bin/patchelf" "$@"; }
rm -rf "$cache/bin"
redis redis-7.0 "$stable" redis-server
redis redis-8.0 "$new" redis-server
redis valkey-8.1 "$new" valkey-server
postgres postgresql-13 "$old" 13
postgres postgresql-15 "$stable" 15
postgres postgresql-17 "$new" 17
mariadb mariadb-10.11 "$stable"
mariadb mariadb-11.8 "$new"
bin etcd-3.4 "$stable"/usr/bin/{etcd,etcdctl}
bin etcd-3.5 "$new"/usr/bin/{etcd,etcdctl}
zookeeper zookeeper-3.8 "$stable"
zookeeper zookeeper-3.9 "$new"
touch "$cache/complete"
