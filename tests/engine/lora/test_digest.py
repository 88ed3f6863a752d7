"""The folder digest: its exact bytes, and what counts."""

import hashlib
from pathlib import Path

import pytest

from nllb_engine.errors import AdapterRejected
from nllb_engine.lora.digest import FileEntry, digest_of, folder_digest, folder_manifest, is_digest


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_the_digest_is_sha256_over_sorted_lines_of_name_size_and_sha256(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", {"b.json": b"second", "a.bin": b""})
    lines = (
        f"a.bin\0{0}\0{hashlib.sha256(b'').hexdigest()}\n"
        f"b.json\0{6}\0{hashlib.sha256(b'second').hexdigest()}\n"
    )
    assert folder_digest(folder) == hashlib.sha256(lines.encode()).hexdigest()
    assert folder_digest(folder) == "653a28448c2fb622058faf0d16185595580066e1394e187f756b771da46afc5f"
    assert [entry.name for entry in folder_manifest(folder)] == ["a.bin", "b.json"]


def test_readme_dotfiles_and_subfolders_do_not_count(tmp_path: Path) -> None:
    plain = fill(tmp_path / "a", {"x": b"1"})
    before = folder_digest(plain)
    fill(plain, {"README.md": b"hello", ".gitattributes": b"x"})
    fill(plain / "checkpoint-10", {"optimizer.pt": b"large"})
    assert folder_digest(plain) == before


@pytest.mark.parametrize("change", [{"x": b"2"}, {"x": b"11"}, {"y": b"1"}, {"readme.md": b""}])
def test_any_other_change_changes_the_digest(tmp_path: Path, change: dict[str, bytes]) -> None:
    before = folder_digest(fill(tmp_path / "a", {"x": b"1"}))
    assert folder_digest(fill(tmp_path / "a", change)) != before


def test_the_order_of_a_manifest_does_not_matter() -> None:
    one, other = FileEntry("a", 1, "0" * 64), FileEntry("b", 2, "1" * 64)
    assert digest_of([one, other]) == digest_of([other, one])


def test_links_devices_missing_and_crowded_folders_are_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path / "a", {"x": b"1"})
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(AdapterRejected, match="link is a link or a device"):
        folder_digest(folder)
    with pytest.raises(AdapterRejected, match="cannot be read"):
        folder_digest(tmp_path / "missing")
    with pytest.raises(AdapterRejected, match="at most 64 count"):
        folder_digest(fill(tmp_path / "b", {str(number): b"" for number in range(65)}))


def test_a_digest_is_64_lowercase_hex_digits() -> None:
    assert is_digest("0a" * 32)
    assert not any(
        is_digest(text) for text in ("0A" * 32, "0a" * 31, "0a" * 33, "../" + "a" * 61, "0a" * 32 + "\n")
    )


@pytest.mark.parametrize("name", ["my notes.txt", "-x", "a\nb", "ä.json", "x" * 129])
def test_a_name_that_cannot_travel_between_pods_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AdapterRejected) as refusal:
        folder_digest(fill(tmp_path / "a", {name: b""}))
    assert refusal.value.reason == "BadFileName"
