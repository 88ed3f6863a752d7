"""The disk tier: complete and verified, or not there at all, whatever the crash."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from nllb_engine.errors import AdapterRejected, DigestMismatch
from nllb_engine.lora.digest import folder_digest
from nllb_engine.lora.store import AdapterStore


def folder_of(parent: Path, content: bytes = b"weights") -> tuple[Path, str]:
    folder = parent / f"source-{len(content)}"
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(content)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "README.md").write_text("not part of it")
    return folder, folder_digest(folder)


def test_a_stored_adapter_is_found_by_its_digest_after_a_restart(tmp_path: Path) -> None:
    folder, digest = folder_of(tmp_path)
    stored = AdapterStore(tmp_path / "store").add_verified(folder, digest)
    again = AdapterStore(tmp_path / "store")
    assert again.path(digest) == stored and again.digests() == [digest]
    assert sorted(os.listdir(stored)) == ["adapter_config.json", "adapter_model.safetensors"]
    assert again.stored_bytes(digest) == len(b"weights") + 2
    assert folder_digest(stored) == digest
    assert folder.exists(), "a folder from elsewhere is copied"


def test_a_staged_folder_is_moved_and_stripped_of_what_does_not_count(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    with store.staging() as staged:
        (staged / "a").write_text("1")
        (staged / ".hidden").write_text("2")
        (staged / "sub").mkdir()
        digest = folder_digest(staged)
        store.add_verified(staged, digest)
        assert not staged.exists()
    assert os.listdir(tmp_path / "store" / digest) == ["a"]
    assert os.listdir(tmp_path / "store" / ".staging") == []


def test_a_wrong_digest_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    folder, digest = folder_of(tmp_path)
    store = AdapterStore(tmp_path / "store")
    with pytest.raises(DigestMismatch) as caught:
        store.add_verified(folder, "0" * 64)
    assert (caught.value.wanted, caught.value.found) == ("0" * 64, digest)
    assert store.digests() == [] and os.listdir(tmp_path / "store" / ".staging") == []


def test_a_check_that_refuses_keeps_the_adapter_out(tmp_path: Path) -> None:
    folder, digest = folder_of(tmp_path)
    store = AdapterStore(tmp_path / "store")

    def refuse(seen: Path) -> None:
        assert folder_digest(seen) == digest and store.path(digest) is None
        raise AdapterRejected("Test", "refused")

    with pytest.raises(AdapterRejected):
        store.add_verified(folder, digest, refuse)
    assert store.path(digest) is None


def test_removing_is_complete_and_repeatable(tmp_path: Path) -> None:
    folder, digest = folder_of(tmp_path)
    store = AdapterStore(tmp_path / "store")
    with open(store.add_verified(folder, digest) / "adapter_model.safetensors", "rb") as reader:
        assert store.remove(digest) and not store.remove(digest)
        assert reader.read() == b"weights", "whoever reads it keeps it"
    assert store.path(digest) is None and store.stored_bytes(digest) == 0


@pytest.mark.parametrize("digest", ["../../etc", "", "A" * 64, "0" * 63])
def test_only_digests_name_folders(tmp_path: Path, digest: str) -> None:
    with pytest.raises(AdapterRejected, match="lowercase hex"):
        AdapterStore(tmp_path / "store").path(digest)


def test_many_threads_may_store_the_same_adapter(tmp_path: Path) -> None:
    folder, digest = folder_of(tmp_path, b"x" * 300_000)
    store = AdapterStore(tmp_path / "store")
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(store.add_verified(folder, digest))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "store" / digest] * 8
    assert folder_digest(found[0]) == digest


KILLED = """
    import itertools, os, sys, time
    from pathlib import Path
    from nllb_engine.lora.digest import folder_digest
    from nllb_engine.lora.store import AdapterStore
    root = Path(sys.argv[1])
    store = AdapterStore(root / "store")
    print("ready", flush=True)
    for number in itertools.count():
        with store.staging() as staged:
            (staged / "a").write_bytes(os.urandom(200_000))
            (staged / "b").write_text(str(number))
            digest = folder_digest(staged)
            store.add_verified(staged, digest)
        if number % 3 == 0:
            store.remove(digest)
"""


def test_a_store_whose_process_is_killed_at_any_moment_holds_only_whole_adapters(tmp_path: Path) -> None:
    for round_number in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        timer = threading.Event()
        timer.wait(0.01 + 0.013 * round_number)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store = AdapterStore(tmp_path / "store")
        assert os.listdir(tmp_path / "store" / ".staging") == []
        for digest in store.digests():
            folder = store.path(digest)
            assert folder is not None and folder_digest(folder) == digest
    assert len(store.digests()) > 5, "the process never got anywhere, so nothing was shown"
