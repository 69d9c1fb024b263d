"""Entry points read from the files of the installed distributions are those that the standard library finds."""

import sys
from importlib import metadata

import pytest

from gcr.entrypoints import entry_points


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def install(folder, name, text, suffix="dist-info", facts="METADATA"):
    info = folder / f"{name}-1.5.{suffix}"
    info.mkdir()
    (info / facts).write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.5\n\nName: no\n")
    (info / "entry_points.txt").write_text(text)


def standard(group):
    return sorted((e.name, e.value, e.dist.name, e.dist.version) for e in metadata.entry_points(group=group) if e.dist)


@pytest.mark.parametrize("group", ["gcr", "console_scripts", "pytest11", "no_such_group"])
def test_here_both_find_the_same(group):
    assert sorted(map(tuple, entry_points(group))) == standard(group)


def test_sections_comments_spaces_and_both_kinds_of_folder(folder):
    install(folder, "my_plugin", "# words\n[other]\na = x\n\n[gcr]\n b= my.module : attribute [extra]\n; no\n")
    install(folder, "older", "[gcr]\nold = older\n", suffix="egg-info", facts="PKG-INFO")
    found = sorted(map(tuple, entry_points("gcr")))
    assert found == [("b", "my.module : attribute [extra]", "my-plugin", "1.5"), ("old", "older", "older", "1.5")]


def test_a_distribution_counts_once_where_it_comes_first(folder, monkeypatch):
    later = folder / "later"
    later.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), str(later), str(folder / "absent")])
    install(folder, "Twice", "[gcr]\nfirst = first\n")
    install(later, "twice", "[gcr]\nsecond = second\n")
    assert [entry.value for entry in entry_points("gcr")] == ["first"]


def test_an_attribute_is_loaded_and_its_lack_is_an_error(folder):
    (folder / "gcr_loaded.py").write_text("class Outer:\n    inner = 5\n")
    install(folder, "loaded", "[gcr]\na = gcr_loaded:Outer.inner [x]\nb = gcr_loaded:Outer.none\n")
    first, second = entry_points("gcr")
    assert first.load() == 5
    with pytest.raises(AttributeError):
        second.load()
    del sys.modules["gcr_loaded"]


def test_an_archive_on_the_path_is_left_to_the_standard_library(folder, monkeypatch):
    import zipfile

    archive = folder / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("zipped-1.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.5\n")
        bundle.writestr("zipped-1.5.dist-info/entry_points.txt", "[gcr]\nz = zipped\n")
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert [tuple(entry) for entry in entry_points("gcr")] == [("z", "zipped", "zipped", "1.5")]
