#!/bin/sh
# Compiles the client into FOLDER/classes, and into the module FOLDER/fencelock-client.jar:
#   clients/java/build.sh FOLDER
# JACKSON is jackson-core.jar, Debian's unless set. Maven does the same with pom.xml.
set -eu
out=$(mkdir -p "$1/modules" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Debian's jar says no module's name: its file's name does.
ln -sf "${JACKSON:-/usr/share/java/jackson-core.jar}" "$out/modules/com.fasterxml.jackson.core.jar"
find src/main/java -name '*.java' | xargs javac --release 17 -Xlint:all,-serial,-requires-automatic -Werror -p "$out/modules" -d "$out/classes"
jar --create --file "$out/fencelock-client.jar" -C "$out/classes" .
