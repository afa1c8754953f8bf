#!/bin/sh
# Builds the site into dist/site/VERSION/, and the page beside it that lists the
# versions there. SITE_VERSION names the version, "main" if unset; SITE_OUT the folder.
set -eu
cd "$(dirname "$0")/.."
version=${SITE_VERSION:-main} out=${SITE_OUT:-$PWD/dist/site}
command -v hugo >/dev/null || { echo "hugo is missing: apt-get install hugo" >&2; exit 1; }

# The sources, laid out as Hugo wants them: a page has the path that it has in the repository.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R site/. "$work"
cp openapi.yaml "$work/data/"
mkdir -p "$work/content/examples" "$work/content/clients" "$work/static/docs"
cp README.md "$work/content/_index.md"
cp CHANGELOG.md CONTRIBUTING.md SECURITY.md "$work/content/"
cp examples/README.md "$work/content/examples/"
for client in python typescript java conformance; do
	mkdir "$work/content/clients/$client"
	cp "clients/$client/README.md" "$work/content/clients/$client/"
done
# A page for each operation of the API; Hugo makes none from data by itself.
sed -n 's/^ *operationId: //p' openapi.yaml | while read -r operation; do
	printf -- '---\ntitle: %s\nlayout: operation\noperation: %s\n---\n' "$operation" "$operation" >"$work/content/api/$operation.md"
done
cp -R docs "$work/content/"
for page in bench/README.md chaos/README.md internal/sim/README.md internal/sim/defects.md; do
	mkdir -p "$work/content/$(dirname "$page")"
	cp "$page" "$work/content/$page"
done
cp -R docs/images "$work/static/docs/"
# The race: its story, its drawing and its looks are the console's; data/race.json is the recording.
mkdir -p "$work/static/console"
for file in race-story.js race-view.js console.css; do
	cp "api/console/static/$file" "$work/static/console/"
done
find "$work/content" -type f ! -name '*.md' -delete

rm -rf "${out:?}/$version"
mkdir -p "$out"
HUGO_PARAMS_VERSION=$version hugo --quiet --minify --source "$work" --destination "$out/$version"

# The newest release before main; the page leads to the first.
versions=$(cd "$out" && find . -mindepth 1 -maxdepth 1 -type d ! -name '.*' | sed 's|^\./||' | sort -rV)
newest=$(echo "$versions" | grep -v '^main$' | head -n 1 || true)
{
	echo '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>fencelock</title>'
	echo '<style>:root{color-scheme:light dark}</style>'
	echo "<h1>fencelock</h1><p><a href=\"${newest:-main}/\">Read the documentation</a><ul>"
	for v in $versions; do echo "<li><a href=\"$v/\">$v</a>"; done
	echo '</ul></html>'
} >"$out/index.html"
echo "$out/$version/index.html"
