"""What every tracked file may and may not say, and the lists that must match the files."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl", "rollout", "rewards", "envs", "model", "kernels")
# Absolute folders of one person's machine; /dev, /proc, /usr and the like exist everywhere.
MACHINE_PATH = re.compile(r"(?<![\w.}~-])/(?:work|root|home|Users|tmp|opt|mnt|data)/[\w.-]+")


def tracked_texts() -> dict[str, str]:
    """Every tracked text file of the repository by its path."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
        cwd=ROOT,
    )
    texts = {}
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        content = path.read_bytes()
        if b"\0" not in content:
            texts[name] = content.decode()
    return texts


def test_no_file_names_a_folder_of_one_machine():
    found = {
        name: hits for name, text in tracked_texts().items() if (hits := MACHINE_PATH.findall(text))
    }
    assert found == {}


def test_text_files_end_with_one_newline_and_no_trailing_blanks():
    for name, text in tracked_texts().items():
        if name.endswith((".py", ".md", ".toml")) and text:
            assert text.endswith("\n"), name
            assert not text.endswith("\n\n"), name
            assert not re.search(r"[ \t]$", text, re.MULTILINE), name


@pytest.mark.parametrize("folder", [*PACKAGES, "configs"])
def test_the_readme_of_a_folder_lists_exactly_its_files(folder):
    readme = (ROOT / folder / "README.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|", readme, re.MULTILINE)
    listed = {row.rstrip("/") for row in rows}
    present = {
        path.name
        for path in (ROOT / folder).iterdir()
        if path.name not in {"README.md", "__init__.py", "__pycache__", "py.typed"}
    }
    assert listed == present


def test_links_in_the_documents_lead_somewhere():
    for name, text in tracked_texts().items():
        if name.endswith(".md"):
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
                assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"
