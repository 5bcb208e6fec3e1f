"""Builds the site of the documentation: `make docs`, or `python -m deploy.site`.

The pages are written for GitHub, where a link may lead to any file of the repository. So they are copied to
build/docs/pages with links that lead to the same files within the site, together with those files, and mkdocs
(docs/mkdocs.yml) makes HTML of that.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONFIGURATION = DOCS / "mkdocs.yml"
PAGES = ROOT / "build" / "docs" / "pages"
SITE = ROOT / "build" / "docs" / "site"

#: Files of the site beside the pages; the configuration names them.
ASSETS = DOCS / "assets"
README = "README.md"
#: Pages of the site outside docs/.
MORE_PAGES = (
    README,
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "conformance_tests/README.md",
    "conformance_tests/clients/README.md",
)
#: A directory whose README GitHub shows, and which pages link to.
ADR = "docs/adr"

#: A link from the end of its text on; the text may be code.
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
#: Code, in which links and tags have no meaning.
CODE = re.compile(r"^( *```).*?^\1`*$|`(?:[^`\n]|\n(?!\n))+`", re.DOTALL | re.MULTILINE)
#: Text that GitHub shows unchanged, but Python-Markdown would treat as HTML: `map<string,string>`.
NO_TAG = re.compile(r"<(?=[A-Za-z]\w*[,\s])(?!a id=)")
OUTSIDE = re.compile(r"[a-z]+://|mailto:")
#: Attributes and tags that make a browser load something.
LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?([^\"'\s>]+)|<link\b[^>]*\bhref=[\"']?([^\"'\s>]+)"
)


class BadLink(Exception):
    pass


def place(path: str) -> str:
    """Return the path of a repository file in the site."""
    if path == README:
        return "index.md"
    if path in (ADR, f"{ADR}/{README}"):
        return "adr/index.md"
    return path.removeprefix("docs/")


def pages() -> list[str]:
    """The pages, as paths from the top of the repository."""
    return [*MORE_PAGES, *(str(page.relative_to(ROOT)) for page in sorted(DOCS.rglob("*.md")))]


def target(page: str, link: str) -> str:
    """Return the file of the repository that a link of a page leads to. Raises BadLink."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    file = ROOT / path
    if path.startswith("..") or not (file.is_file() or path == ADR):
        raise BadLink(f"{page}: {link} leads to no file")
    return path


def rewritten(page: str, text: str, linked: set[str]) -> str:
    """Return the site's version of a page; add the files that it links to, to `linked`. Raises BadLink."""
    here = posixpath.dirname(place(page))

    def moved(found: re.Match[str]) -> str:
        path, hash_, anchor = found[2].partition("#")
        if not path or OUTSIDE.match(found[2]):
            return found[0]
        file = target(page, path)
        linked.add(file)
        return found[1] + posixpath.relpath(place(file), here or ".") + hash_ + anchor + found[3]

    def prose(part: str) -> str:
        return LINK.sub(moved, NO_TAG.sub("&lt;", part))

    parts, at = [], 0
    for code in CODE.finditer(text):
        parts += [prose(text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, prose(text[at:])])


def gather(directory: Path) -> None:
    """Write all pages of the site, and the files that they link to. Raises BadLink."""
    linked: set[str] = set()
    own = pages()
    for page in own:
        _write(directory / place(page), rewritten(page, (ROOT / page).read_text(), linked))
    shutil.copytree(ASSETS, directory / "assets")
    for file in sorted(linked.difference(own, [ADR])):
        copy = directory / place(file)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def foreign(site: Path) -> list[str]:
    """Return the URLs that the site's pages would load from other hosts."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for one, other in LOADED.findall(page.read_text()):
            address = one or other
            if address.startswith("//") or (OUTSIDE.match(address) and "canonical" not in address):
                found.append(f"{page.relative_to(site)}: {address}")
    return found


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    gather(PAGES)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--quiet"]
    done = subprocess.run([*command, "--config-file", str(CONFIGURATION)], check=False)
    if done.returncode:
        return done.returncode
    loaded = foreign(SITE)
    if loaded:
        print("these pages would load something from another host:", *loaded, sep="\n", file=sys.stderr)
        return 1
    print(SITE / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
