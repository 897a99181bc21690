"""What mkdocs does for the documentation site besides rendering docs/: `make docs`.

- The README is the first page.
- Files of the repository that pages link to (`../benchmarks/LOG.md`) become part of the site, below `repo/`.
- The page of the commands is written by the commands themselves.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "benchmarks/LOG.md", "benchmarks/GPU.md")
LINK = re.compile(r"(\]\()([^)#\s]+)([^)]*\))")
COMMANDS = {
    "fastdata-prep": ["fastdata-prep", "--help"],
    "fastdata-prep run": ["fastdata-prep", "run", "--help"],
    "fastdata-prep finish": ["fastdata-prep", "finish", "--help"],
}


def on_files(files: Files, config: Any) -> Files:
    """Add the README, the commands, and the files of the repository that pages link to."""
    files.append(File.generated(config, "index.md", content=_rebased((ROOT / "README.md").read_text(), "", ROOT)))
    files.append(File.generated(config, "cli.md", content=commands()))
    wanted = set(ALWAYS)
    for page in (ROOT / "docs").glob("**/*.md"):
        wanted |= _outside(page)
    wanted |= _outside(ROOT / "README.md")
    done = set[str]()
    while wanted - done:
        name = sorted(wanted - done)[0]
        done.add(name)
        path = ROOT / name
        if path.suffix == ".md":
            wanted |= _outside(path)
            files.append(File.generated(config, f"repo/{name}", content=_rebased(path.read_text(), f"repo/{name}", path.parent)))
        elif path.is_file():
            files.append(File.generated(config, f"repo/{name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that lead out of docs/ into links to the copies below repo/."""
    name = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return _rebased(markdown, name, (ROOT / "docs" / name).parent)


def _outside(page: Path) -> set[str]:
    """Return the files of the repository, outside docs/, that a page links to."""
    found = set()
    for _, target, _ in LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        if (
            "://" not in target
            and path.is_relative_to(ROOT)
            and not path.is_relative_to(ROOT / "docs")
            and path != ROOT / "README.md"
        ):
            found |= {str(file.relative_to(ROOT)) for file in ([path] if path.is_file() else sorted(path.glob("*.md")))}
    return found


def _rebased(text: str, name: str, folder: Path) -> str:
    """Return a page whose links to files of the repository are relative to its place on the site."""

    def link(match: re.Match[str]) -> str:
        start, target, rest = match.groups()
        path = (folder / target).resolve()
        if "://" in target or not path.is_relative_to(ROOT):
            return match[0]
        if path == ROOT / "README.md":
            place = "index.md"
        elif path.is_relative_to(ROOT / "docs"):
            place = path.relative_to(ROOT / "docs").as_posix()
        else:
            place = f"repo/{path.relative_to(ROOT).as_posix()}"
        if path.is_dir():
            newest = sorted(path.glob("*.md"))
            place = f"repo/{newest[-1].relative_to(ROOT).as_posix()}" if newest else place
        up = "../" * name.count("/")
        return f"{start}{up}{place}{rest}"

    return LINK.sub(link, text)


def commands() -> str:
    """Return the page of the commands, from their own help."""
    listed = _help(["fastdata", "--help"])
    names = re.findall(r"^  ([a-z]+)  ", listed.partition("Commands:")[2], re.MULTILINE)
    start = "# Commands\n\nThe `--help` of each command. `fastdata-prep plan` has the options of `fastdata-prep`.\n\n"
    parts = [f"{start}## fastdata\n\n```text\n{listed}```\n"]
    every = {**COMMANDS, **{f"fastdata {name}": ["fastdata", name, "--help"] for name in names if name != "prep"}}
    for title, command in every.items():
        parts.append(f"## {title}\n\n```text\n{_help(command)}```\n")
    return "\n".join(parts)


def _help(command: list[str]) -> str:
    program = Path(sys.executable).with_name(command[0])
    env = {**os.environ, "COLUMNS": "110"}
    return subprocess.run([program, *command[1:]], capture_output=True, text=True, check=True, env=env).stdout
