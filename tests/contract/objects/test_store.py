"""What every object store must do: in a folder, in memory, through `obstore`, and over S3."""

import secrets
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore.store
import pytest
from tests.contract.objects.conftest import S3Server

from ister.base.errors import ConfigError, ObjectExistsError
from ister.log.files.ports import Store
from ister.objects import LocalDisk, LocalStore, MemoryDisk, open_store, verify_store
from ister.objects.remote import RemoteStore, StoreClient
from ister.testing import FaultyDisk

WRITERS = 8


class StoreContract(ABC):
    """What every store must do. Subclasses supply `store` and add nothing."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> Store: ...

    def test_an_object_is_read_as_it_was_put(self, store: Store) -> None:
        content = secrets.token_bytes(100_000)
        store.put("segments/1", content)

        assert store.get("segments/1") == content
        assert store.size("segments/1") == len(content)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_kind_of_buffer_can_be_put(self, store: Store, kind: type) -> None:
        store.put("segments/1", kind(b"bytes"))

        assert store.get("segments/1") == b"bytes"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("segments/1", b"")

        assert (store.get("segments/1"), store.size("segments/1")) == (b"", 0)
        assert store.names("segments/") == ["segments/1"]

    def test_a_second_put_of_a_name_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.put("chunks/1", b"first")

        with pytest.raises(ObjectExistsError):
            store.put("chunks/1", b"second")
        # Also the same bytes: they may be a rival's.
        with pytest.raises(ObjectExistsError):
            store.put("chunks/1", b"first")
        assert store.get("chunks/1") == b"first"

    def test_of_many_writers_of_one_name_one_succeeds(self, store: Store) -> None:
        def write(number: int) -> int | None:
            try:
                store.put("chunks/1", b"%d" % number)
            except ObjectExistsError:
                return None
            return number

        with ThreadPoolExecutor(WRITERS) as threads:
            results = list(threads.map(write, range(WRITERS)))

        winners = [number for number in results if number is not None]
        assert len(winners) == 1
        assert store.get("chunks/1") == b"%d" % winners[0]

    @pytest.mark.parametrize(
        ("position", "size_bytes", "expected"),
        [
            (0, 10, b"0123456789"),
            (0, 1, b"0"),
            (9, 1, b"9"),
            (3, 4, b"3456"),
            (8, 10, b"89"),
            (10, 1, b""),
            (25, 10, b""),
            (3, 0, b""),
        ],
    )
    def test_a_range_ends_early_only_at_the_end_of_the_object(
        self, store: Store, position: int, size_bytes: int, expected: bytes
    ) -> None:
        store.put("segments/1", b"0123456789")

        assert store.get_range("segments/1", position, size_bytes) == expected

    def test_a_missing_object_is_not_found(self, store: Store) -> None:
        with pytest.raises(FileNotFoundError):
            store.get("segments/1")
        with pytest.raises(FileNotFoundError):
            store.get_range("segments/1", 0, 1)
        with pytest.raises(FileNotFoundError):
            store.size("segments/1")

    def test_names_are_sorted_and_of_the_prefix_alone(self, store: Store) -> None:
        for name in ("chunks/3", "chunks/1", "chunks2/9", "manifests/7", "chunks/2"):
            store.put(name, b"")

        assert store.names("chunks/") == ["chunks/1", "chunks/2", "chunks/3"]
        assert store.names("nothing/") == []

    def test_more_names_than_a_page_of_s3_are_all_listed(self, store: Store) -> None:
        names = [f"chunks/{number:020d}" for number in range(1_050)]
        with ThreadPoolExecutor(WRITERS) as threads:
            list(threads.map(lambda name: store.put(name, b""), names))

        assert store.names("chunks/") == names

    def test_a_removed_object_is_gone_and_its_name_free(self, store: Store) -> None:
        store.put("chunks/1", b"first")
        assert store.get_range("chunks/1", 0, 5) == b"first"
        store.remove("chunks/1")

        assert store.names("chunks/") == []
        with pytest.raises(FileNotFoundError):
            store.get_range("chunks/1", 0, 5)
        store.put("chunks/1", b"other")
        assert store.get_range("chunks/1", 0, 5) == b"other"

    def test_removing_a_missing_object_is_fine(self, store: Store) -> None:
        store.remove("chunks/1")

        assert store.names("chunks/") == []

    def test_an_object_of_many_megabytes_is_put_and_read_in_parts(self, store: Store) -> None:
        block = secrets.token_bytes(1024 * 1024)
        store.put("segments/1", block * 20)

        assert store.size("segments/1") == 20 * len(block)
        assert store.get_range("segments/1", 13 * len(block), len(block)) == block

    def test_it_passes_the_check_made_before_it_is_used(self, store: Store) -> None:
        assert isinstance(store, LocalStore | RemoteStore)
        verify_store(store)

        assert store.names("probes/") == []


class TestFolderStore(StoreContract):
    """`file://`."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store((tmp_path / "a store").as_uri())


class TestMemoryStore(StoreContract):
    """`memory://`."""

    @pytest.fixture
    def store(self) -> Store:
        return open_store("memory://")


class TestFaultyStore(StoreContract):
    """The disk that fails, while it does not."""

    @pytest.fixture
    def store(self) -> Store:
        return LocalStore(FaultyDisk())


class TestObstoreMemory(StoreContract):
    """`RemoteStore` over a store in memory: the adapter without a network."""

    @pytest.fixture
    def store(self) -> Store:
        client: StoreClient = obstore.store.MemoryStore()  # type: ignore[assignment]
        return RemoteStore("memory://", reads=client, small_writes=client, large_writes=client)


@pytest.mark.e2e
class TestS3(StoreContract):
    """`s3://`, a real server."""

    @pytest.fixture
    def store(self, s3_server: S3Server) -> Store:
        return open_store(s3_server.url(secrets.token_hex(8)), s3_server.options)


@pytest.mark.e2e
def test_s3_with_a_wrong_secret_is_a_storage_failure_at_once(s3_server: S3Server) -> None:
    options = s3_server.options | {"secret_access_key": "another"}
    store = open_store(s3_server.url("denied"), options)

    with pytest.raises(PermissionError, match=r"chunks/1"):
        store.put("chunks/1", b"")


@pytest.mark.e2e
def test_two_folders_of_a_bucket_know_nothing_of_each_other(s3_server: S3Server) -> None:
    here = open_store(s3_server.url("here"), s3_server.options)
    there = open_store(s3_server.url("there"), s3_server.options)
    here.put("chunks/1", b"here")

    assert there.names("chunks/") == []
    there.put("chunks/1", b"there")
    assert here.get("chunks/1") == b"here"


class ReplacingDisk(MemoryDisk):
    """A store that ignores the condition, as some that call themselves S3 do."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Make a file, or replace it."""
        self.remove(name)
        super().put(name, data)


def test_a_store_that_replaces_objects_is_refused() -> None:
    store = LocalStore(ReplacingDisk())

    with pytest.raises(ConfigError, match="conditional writes"):
        verify_store(store)
    assert store.names("probes/") == []


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "data", "", "file://data/folder", "s3://"],
)
def test_an_address_of_no_store_is_a_mistake_in_the_settings(url: str) -> None:
    with pytest.raises(ConfigError, match="store"):
        open_store(url)


def test_an_unknown_option_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="endpiont"):
        open_store("s3://bucket", {"endpiont": "http://127.0.0.1:1"})


def test_a_folder_store_reads_with_few_open_files(tmp_path: Path) -> None:
    store = LocalStore(LocalDisk(tmp_path))
    for number in range(300):
        store.put(f"segments/{number:03d}", b"%d" % number)

    for _ in range(2):
        for number in range(300):
            assert store.get_range(f"segments/{number:03d}", 0, 9) == b"%d" % number
    assert open_files(tmp_path) <= 128
    store.close()
    assert open_files(tmp_path) == 0


def open_files(folder: Path) -> int:
    """Count the files below `folder` that this process has open."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("no /proc here")
    targets = [one.readlink() for one in descriptors.iterdir() if one.is_symlink()]
    return sum(target.is_relative_to(folder) for target in targets)
