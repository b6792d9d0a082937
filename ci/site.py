"""Puts the pages of the documentation together for mdBook, and checks the links of what mdBook has made (ci/site.sh)."""

import html.parser
import os
import re
import shutil
import sys
import urllib.parse

# Pages that are kept elsewhere, and their names in the site.
ELSEWHERE = {
    "README.md": "introduction.md",
    "src/ARCHITECTURE.md": "architecture.md",
    "benches/README.md": "benches.md",
    "CHANGELOG.md": "changes.md",
    "config/bivouac.toml": "configuration.md",
    "launch/README.md": "batch.md",
    "launch/slurm/README.md": "slurm.md",
    "src/hdf5/README.md": "hdf5.md",
    "packaging/README.md": "packages.md",
    "ci/README.md": "checks.md",
    "tests/TRIALS.md": "trials.md",
}
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def gather(root, target):
    """Copies all pages into one folder, with links that fit there; what they link to beside pages comes along."""
    pages = dict(ELSEWHERE)
    pages.update({f"docs/{name}": name for name in os.listdir(f"{root}/docs") if name.endswith(".md")})
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    for path, name in pages.items():
        with open(f"{root}/{path}") as file:
            text = file.read()
        if path.endswith(".toml"):
            text = f"# Configuration\n\nAll keys with their defaults. A variable `BIVOUAC_SECTION_KEY` overrides each.\n\n```toml\n{text}```\n"
        else:
            text = relinked(root, target, os.path.dirname(path), pages, text)
        with open(f"{target}/{name}", "w") as file:
            file.write(text)


def relinked(root, target, folder, pages, text):
    def link(found):
        words, where = found.groups()
        path, _, anchor = where.partition("#")
        if not path or "://" in where:
            return found[0]
        path = os.path.normpath(os.path.join(folder, path))
        if path in pages:
            return f"[{words}]({pages[path]}{'#' + anchor if anchor else ''})"
        if not os.path.isfile(f"{root}/{path}"):
            return words
        os.makedirs(os.path.dirname(f"{target}/files/{path}"), exist_ok=True)
        shutil.copyfile(f"{root}/{path}", f"{target}/files/{path}")
        return f"[{words}](files/{path})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = set(), set()
        with open(path) as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(value for value in (attributes.get("id"), attributes.get("name")) if value)
        self.links.update(value for value in (attributes.get("href"), attributes.get("src")) if value)


def check(site):
    """Says which links of the site lead nowhere."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(site) for name in names if name.endswith(".html")]
    pages = {os.path.normpath(path): Page(path) for path in found}
    broken = set()
    for path, page in pages.items():
        # mdBook's page for missing pages assumes a server's address, and print.html joins all pages.
        if os.path.basename(path) in ("404.html", "print.html", "toc.html"):
            continue
        for link in page.links:
            where = urllib.parse.urlparse(link)
            if where.scheme or where.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(where.path))) if where.path else path
            if not os.path.exists(target) or where.fragment and target in pages and where.fragment not in pages[target].anchors:
                broken.add(f"{os.path.relpath(path, site)}: {link}")
    for line in sorted(broken):
        print(line, file=sys.stderr)
    print(f"{len(pages)} pages, {len(broken)} broken links")
    return 1 if broken or len(pages) < 20 else 0


if __name__ == "__main__":
    step, *arguments = sys.argv[1:]
    sys.exit(gather(*arguments) if step == "gather" else check(*arguments))
