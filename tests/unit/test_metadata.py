"""The page of gcr in a package index: project URLs, and a readme with links that work there."""

import re
import runpy
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
PROGRAM = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as made; made(sys.argv[1])"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("metadata")
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder)], cwd=ROOT, capture_output=True, check=True, timeout=60)
    (found,) = folder.glob("*.dist-info/METADATA")
    message = Parser().parsestr(found.read_text())
    return {name: message.get_all(name, []) for name in message} | {"": [message.get_payload()]}


def test_every_url_is_the_projects(metadata: dict[str, list[str]]) -> None:
    urls = dict(line.split(", ") for line in metadata["Project-URL"])
    assert {"Source", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith(SOURCE) for url in urls.values())
    assert any("Alpha" in line for line in metadata["Classifier"])


def test_each_link_of_the_readme_leads_to_a_file_of_the_repository(metadata: dict[str, list[str]]) -> None:
    (text,) = metadata[""]
    links = re.findall(r'\]\(([^)\s]+)\)|(?:href|src|srcset)="([^"]+)"', text)
    found = [link for pair in links for link in pair if link and not link.startswith("#")]
    assert len(found) > 20
    for link in found:
        ours = re.fullmatch(rf"{SOURCE}/(blob|raw)/main/([^#]+)(#.*)?", link)
        assert ours or link.startswith("https://"), link
        if ours:
            assert (ROOT / ours[2]).exists(), link
            assert (ours[1] == "raw") == ours[2].endswith(".svg"), link


def test_the_picture_is_as_drawn_and_its_figures_are_those_of_the_benchmarks() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "readme_picture.py"))
    for name, picture in drawn["pictures"]().items():
        assert (ROOT / "docs" / "pictures" / name).read_text() == picture, (
            "python tools/readme_picture.py docs/pictures"
        )
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE))
    ours = [float(rows[f"{what} of 32 GiB"].split()[0]) for what in ("checkpoint", "restore")]
    drivers = [float(word) for word in re.findall(r"\d+\.\d+", rows["the driver's own, 32 GiB, out / in"])]
    assert [round(ours[0] + 1e-9, 2), round(ours[1], 2)] == [drawn["GCR_OUT"], drawn["GCR_BACK"]]
    assert [round(each, 1) for each in drivers] == [drawn["DRIVER_OUT"], drawn["DRIVER_BACK"]]
