#!/bin/sh
# Compiles the client into FOLDER/classes, and into the module FOLDER/fencelock-client.jar, the same bytes in each build:
#   clients/java/build.sh FOLDER
# JACKSON is jackson-core.jar, Debian's unless set. Maven does the same with pom.xml.
set -eu
out=$(mkdir -p "$1/modules" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Debian's jar says no module's name: its file's name does.
ln -sf "${JACKSON:-/usr/share/java/jackson-core.jar}" "$out/modules/com.fasterxml.jackson.core.jar"
rm -rf "$out/classes"
find src/main/java -name '*.java' | LC_ALL=C sort | xargs javac --release 17 -Xlint:all,-serial,-requires-automatic -Werror -p "$out/modules" -d "$out/classes"
date=$(sed -n 's:.*<project.build.outputTimestamp>\(.*\)</.*:\1:p' pom.xml)
cd "$out/classes"
find . -type f | LC_ALL=C sort | xargs jar --create --file "$out/fencelock-client.jar" --date "$date"
