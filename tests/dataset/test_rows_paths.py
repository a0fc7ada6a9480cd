"""Published spellings of paths against a listing."""

from __future__ import annotations

import pickle
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee_hf.dataset.paths import PathResolver
from reasonknee_hf.errors import AmbiguousPathError, FileMissingError

LISTING = [
    "README.md",
    "code/zero_shot/run.py",
    "data/images/a.nii.gz",
    "data/images/two words.nii.gz",
    "data/images/plus+sign.nii.gz",
    "data/images/knie_größe.nii.gz",
    "data/images/9000001/00M/20041222_10300001_2.nii.gz",
    "data/images/9000001/12M/20051222_10300009_2.nii.gz",
    "data/x/same.nii.gz",
    "data/y/same.nii.gz",
]


@pytest.fixture
def resolver() -> PathResolver:
    return PathResolver(LISTING)


@pytest.mark.parametrize(
    "published",
    [
        "data/images/a.nii.gz",
        "../data/images/a.nii.gz",
        "../../data/images/a.nii.gz",
        "./data/images/a.nii.gz",
        "/data/images/a.nii.gz",
        r"data\images\a.nii.gz",
        r"..\data\images\a.nii.gz",
        r"C:\proj\data\images\a.nii.gz",
        "/home/someone/proj/data/images/a.nii.gz",
        "file:///home/someone/data/images/a.nii.gz",
        "/mnt/x/images/a.nii.gz",
        "/data/team/images/a.nii.gz",
        "images/a.nii.gz",
        "a.nii.gz",
        "data//images/./a.nii.gz",
        "data/masks/../images/a.nii.gz",
        "d%61ta/images/a.nii.gz",
    ],
)
def test_every_spelling_gives_the_one_file(resolver: PathResolver, published: str) -> None:
    assert resolver.resolve(published) == "data/images/a.nii.gz"


@pytest.mark.parametrize(
    ("published", "path"),
    [
        ("../data/images/two words.nii.gz", "data/images/two words.nii.gz"),
        ("../data/images/two%20words.nii.gz", "data/images/two words.nii.gz"),
        ("plus+sign.nii.gz", "data/images/plus+sign.nii.gz"),
        ("plus%2Bsign.nii.gz", "data/images/plus+sign.nii.gz"),
        ("images/knie_größe.nii.gz", "data/images/knie_größe.nii.gz"),
        (unicodedata.normalize("NFD", "images/knie_größe.nii.gz"), "data/images/knie_größe.nii.gz"),
        ("images/knie_gr%C3%B6%C3%9Fe.nii.gz", "data/images/knie_größe.nii.gz"),
        ("x/same.nii.gz", "data/x/same.nii.gz"),
        ("/else/y/same.nii.gz", "data/y/same.nii.gz"),
    ],
)
def test_blanks_signs_and_letters(resolver: PathResolver, published: str, path: str) -> None:
    assert resolver.resolve(published) == path


@pytest.mark.parametrize("published", ["same.nii.gz", "z/same.nii.gz", "/home/u/same.nii.gz"])
def test_two_files_that_fit_are_an_error_that_lists_them(resolver: PathResolver, published: str) -> None:
    with pytest.raises(AmbiguousPathError, match=r"2 files.*data/x/same\.nii\.gz, data/y/same\.nii\.gz"):
        resolver.resolve(published)


@pytest.mark.parametrize(
    "published",
    [
        "../../../../../etc/passwd",
        "data/../../images/a.nii.gz",
        "/../data/images/a.nii.gz",
        "%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/data/images/a.nii.gz",
        r"..\..\..\..\..\data\images\a.nii.gz",
    ],
)
def test_climbing_out_of_the_release_is_an_error(resolver: PathResolver, published: str) -> None:
    with pytest.raises(AmbiguousPathError, match="climbs out"):
        resolver.find(published)


@pytest.mark.parametrize(
    "published",
    [
        "../data/images/9000002/00M/20041222_10300001_2.nii.gz",  # another patient
        "/elsewhere/9000001/24M/20041222_10300001_2.nii.gz",  # another visit
        "../data/masks/a.nii.gz",  # a mask must not give an image
        "../data/images/b.nii.gz",
        "",
        "/",
        "a.nii",
        "A.nii.gz",
    ],
)
def test_what_is_not_there_is_missing_and_never_another_file(resolver: PathResolver, published: str) -> None:
    assert resolver.find(published) is None
    with pytest.raises(FileMissingError, match="10 files"):
        resolver.resolve(published)


def test_the_error_names_files_of_the_same_name(resolver: PathResolver) -> None:
    with pytest.raises(
        FileMissingError, match=r"same name are only data/images/9000001/00M/20041222_10300001_2"
    ):
        resolver.resolve("../data/images/9000002/00M/20041222_10300001_2.nii.gz")


def test_a_file_at_the_root_is_meant_by_its_own_path_only() -> None:
    resolver = PathResolver(["a.nii.gz", "x/a.nii.gz"])
    assert resolver.resolve("a.nii.gz") == "a.nii.gz"
    assert resolver.resolve("./a.nii.gz") == "a.nii.gz"
    with pytest.raises(AmbiguousPathError):
        resolver.resolve("y/a.nii.gz")


def test_members_of_an_archive_in_whatever_folder() -> None:
    assert (
        PathResolver(["final/knee_003.nii.gz"]).resolve("../data/masks/knee_003.nii.gz")
        == "final/knee_003.nii.gz"
    )
    assert PathResolver(["knee_003.nii.gz"]).resolve("../data/masks/knee_003.nii.gz") == "knee_003.nii.gz"


def test_a_literal_percent_sign_comes_before_its_decoded_form() -> None:
    resolver = PathResolver(["x/a%20b.nii", "x/a b.nii"])
    assert resolver.resolve("x/a%20b.nii") == "x/a%20b.nii"
    assert resolver.resolve("/root/x/a b.nii") == "x/a b.nii"
    assert resolver.resolve("x/a%2520b.nii") == "x/a%20b.nii"  # decoded once, not twice


def test_two_codings_of_one_name_are_told_apart_or_refused() -> None:
    composed, decomposed = (unicodedata.normalize(form, "x/é.nii") for form in ("NFC", "NFD"))
    resolver = PathResolver([composed, decomposed])
    assert resolver.resolve(composed) == composed
    assert resolver.resolve(decomposed) == decomposed
    with pytest.raises(AmbiguousPathError):
        resolver.resolve(f"/root/{composed}")


def test_survives_pickling_and_forgets_nothing(resolver: PathResolver) -> None:
    copy = pickle.loads(pickle.dumps(resolver))
    assert copy.resolve("a.nii.gz") == resolver.resolve("a.nii.gz")


_NAMES = st.sampled_from(["a", "b", "1", "x y", "ä", "p+q", "100%"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


@settings(deadline=None)
@given(st.sets(_PATHS, min_size=1, max_size=12), st.data())
def test_a_whole_path_always_gives_itself_under_any_root(paths: set[str], data: st.DataObject) -> None:
    # A file cannot also be a folder.
    paths = {path for path in paths if not any(other.startswith(path + "/") for other in paths)}
    resolver = PathResolver(paths)
    path = data.draw(st.sampled_from(sorted(paths)))
    assert resolver.resolve(path) == path
    assert resolver.resolve(path.replace("/", "\\")) == path
    # Below a foreign root it is found, or refused because a longer path ends alike.
    try:
        found = resolver.resolve(f"/elsewhere/{path}")
    except AmbiguousPathError:
        assert sum(f"/{other}".endswith(f"/{path}") for other in paths) > 1
    else:
        assert found == path


@settings(deadline=None)
@given(st.sets(_PATHS, min_size=1, max_size=12), _PATHS)
def test_what_is_found_shares_the_longest_end_and_is_the_only_one(paths: set[str], published: str) -> None:
    resolver = PathResolver(paths)

    def shared(path: str) -> int:
        count = 0
        for mine, theirs in zip(reversed(path.split("/")), reversed(published.split("/")), strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    best = max(map(shared, paths))
    fitting = [path for path in paths if shared(path) == best]
    try:
        found = resolver.find(published)
    except AmbiguousPathError:
        assert best
        assert len(fitting) > 1
    else:
        if found is not None:
            assert fitting == [found] or found == published
        elif best == 1 + published.count("/"):
            pytest.fail("a path that ends exactly as published must be found")
