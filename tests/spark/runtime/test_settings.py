"""Masters, memory and settings, before anything is started."""

import shlex
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.settings import (
    check_memory,
    check_reachable,
    join_options,
    parse_master,
    session_settings,
    worker_python,
)

GIB = 1 << 30


@pytest.mark.parametrize("url", ["local", "local[*]", "local[2]", "local[4,3]", "local[*, 2]"])
def test_threads_of_this_process_are_local(url: str) -> None:
    assert parse_master(url).local
    assert parse_master(url).loopback


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://head:7077", False),
        ("spark://127.0.0.1:7077,head:7077", False),
        ("yarn", False),
        ("k8s://https://10.0.0.1:6443", False),
    ],
)
def test_a_cluster_off_this_machine_must_reach_the_driver(url: str, loopback: bool) -> None:
    assert not parse_master(url).local
    assert parse_master(url).loopback is loopback


@pytest.mark.parametrize(
    "url",
    ["", "local[0]", "local[x]", "Local", "spark://", "spark://head", "localhost:7077", "mesos"],
)
def test_a_master_that_is_not_known_is_refused_with_those_that_are(url: str) -> None:
    with pytest.raises(PolymuxError, match=r"spark://host:7077"):
        parse_master(url)


def test_spark_connect_is_refused_with_the_way_to_have_it() -> None:
    with pytest.raises(PolymuxError, match=r"--remote"):
        parse_master("sc://head:15002")


def test_the_masters_of_a_pair_are_all_known() -> None:
    assert parse_master("spark://a:1,[::1]:22").addresses() == [("a", 1), ("::1", 22)]


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        url = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PolymuxError, match=url):
            check_reachable(parse_master(url), timeout=2.0)


def test_one_answering_master_of_several_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead, live = taken.getsockname()[1], server.getsockname()[1]
        check_reachable(parse_master(f"spark://127.0.0.1:{dead},127.0.0.1:{live}"))


def test_too_small_a_heap_is_refused_before_spark_does() -> None:
    with pytest.raises(PolymuxError, match="give 512m or more"):
        check_memory("400m", 8 * GIB)


def test_too_small_a_machine_is_told_what_would_fit() -> None:
    with pytest.raises(PolymuxError, match=r"needs 1\.3 GiB, but only 1 GiB.*for example 512m"):
        check_memory("1g", GIB)


def test_a_machine_too_small_for_any_session_is_not_told_to_try_less() -> None:
    with pytest.raises(PolymuxError, match=r"only 600 MiB are free: close something$"):
        check_memory("1g", 600 << 20)


def test_a_heap_that_fits_passes() -> None:
    check_memory("1g", 2 * GIB)


def settings(master: str, folder: Path, conf: dict[str, str]) -> dict[str, str]:
    return session_settings(
        parse_master(master),
        memory="1g",
        app_name="test",
        folder=folder,
        java_options=["-Dours=1"],
        conf=conf,
    )


def test_the_users_settings_win(tmp_path: Path) -> None:
    found = settings("local[2]", tmp_path, {"spark.ui.enabled": "true", "spark.mine": "x"})
    assert found["spark.ui.enabled"] == "true"
    assert found["spark.mine"] == "x"


def test_the_users_java_options_come_last(tmp_path: Path) -> None:
    found = settings("local[2]", tmp_path, {"spark.driver.extraJavaOptions": "-Dtheirs=1"})
    options = found["spark.driver.extraJavaOptions"].split()
    assert options[-2:] == ["-Dours=1", "-Dtheirs=1"]


def test_the_quick_compiler_is_for_local_sessions_only(tmp_path: Path) -> None:
    for master, quick in {
        "local[2]": True,
        "local-cluster[2,1,1024]": False,
        "yarn": False,
    }.items():
        found = settings(master, tmp_path, {})
        assert ("TieredStopAtLevel=1" in found["spark.driver.extraJavaOptions"]) is quick


def test_a_driver_other_machines_must_reach_is_not_bound_to_loopback(tmp_path: Path) -> None:
    assert "spark.driver.host" not in settings("spark://head:7077", tmp_path, {})
    assert settings("local[2]", tmp_path, {})["spark.driver.bindAddress"] == "127.0.0.1"


def test_a_local_driver_asks_for_authentication_and_a_cluster_has_its_own(tmp_path: Path) -> None:
    assert settings("local[2]", tmp_path, {})["spark.authenticate"] == "true"
    assert "spark.authenticate" not in settings("spark://head:7077", tmp_path, {})
    own = {"spark.authenticate": "false"}
    assert settings("local[2]", tmp_path, own)["spark.authenticate"] == "false"


def test_the_master_is_said_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(PolymuxError, match="master="):
        settings("local[2]", tmp_path, {"spark.master": "local[4]"})


def test_the_workers_of_a_cluster_may_have_a_python_of_their_own() -> None:
    assert worker_python(parse_master("yarn"), "/opt/python") == "/opt/python"
    assert worker_python(parse_master("local[2]"), "/opt/python") != "/opt/python"


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1)))
def test_options_survive_being_written_on_one_line(options: list[str]) -> None:
    """Spark's launcher splits as a shell does, but knows no escapes outside double quotes."""
    assert shlex.split(join_options(options, ""), posix=True) == options
