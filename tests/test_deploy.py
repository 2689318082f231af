"""The files in deploy/: what Spark on Kubernetes asks of them, and what they name."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own

from polymux.cli.commands.analyze import analyze
from polymux.cli.commands.lake import lake

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
KINDS = {
    "Namespace": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "CronJob": "batch/v1",
}
JOBS = ("analyze", "lake")
INSTRUCTIONS = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT"}


def documents(kind: str) -> list[Any]:
    found = [doc for path in MANIFESTS for doc in yaml.safe_load_all(path.read_text())]
    return [doc for doc in found if doc["kind"] == kind]


def one(kind: str) -> Any:
    (document,) = documents(kind)
    return document


def job(name: str) -> Any:
    (found,) = (doc for doc in documents("CronJob") if doc["metadata"]["name"] == name)
    return found


def pod(name: str) -> Any:
    return job(name)["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def commands(name: str) -> list[list[str]]:
    """The commands of a job, each from the word behind `polymux` on."""
    (script,) = pod(name)["containers"][0]["args"]
    lines = [shlex.split(line) for line in script.replace("\\\n", " ").splitlines()]
    return [words[words.index("polymux") + 1 :] for words in lines if "polymux" in words]


def settings(name: str) -> dict[str, str]:
    words = commands(name)[0]
    given = [words[n + 1] for n, word in enumerate(words) if word == "--conf"]
    return dict(pair.partition("=")[::2] for pair in given)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_has_kinds_names_and_the_namespace(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        assert document["apiVersion"] == KINDS[document["kind"]]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == one("Namespace")["metadata"]["name"]


def test_the_driver_may_do_what_spark_asks_for_and_nothing_outside_its_namespace() -> None:
    role, binding = one("Role"), one("RoleBinding")
    (rule,) = role["rules"]
    assert set(rule["resources"]) == {"pods", "services", "configmaps", "persistentvolumeclaims"}
    assert {"create", "get", "list", "watch", "delete", "deletecollection"} <= set(rule["verbs"])
    assert "*" not in rule["verbs"]
    assert binding["roleRef"]["kind"] == "Role"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject["name"] == one("ServiceAccount")["metadata"]["name"]
    for name in JOBS:
        assert pod(name)["serviceAccountName"] == subject["name"]


@pytest.mark.parametrize("name", JOBS)
def test_the_executors_have_what_client_mode_needs(name: str) -> None:
    found = settings(name)
    container = pod(name)["containers"][0]
    fields = {env["name"]: env["valueFrom"]["fieldRef"]["fieldPath"] for env in container["env"]}
    assert found["spark.driver.host"] == "$POD_IP"
    assert found["spark.kubernetes.driver.pod.name"] == "$POD_NAME"
    assert fields == {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    assert found["spark.kubernetes.namespace"] == job(name)["metadata"]["namespace"]
    account = found["spark.kubernetes.authenticate.driver.serviceAccountName"]
    assert account == pod(name)["serviceAccountName"]
    assert found["spark.kubernetes.container.image"] == container["image"]


@pytest.mark.parametrize("name", JOBS)
def test_driver_and_executors_see_the_same_volumes_in_the_same_places(name: str) -> None:
    container, found = pod(name)["containers"][0], settings(name)
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod(name)["volumes"]
    }
    assert set(claims.values()) == {
        doc["metadata"]["name"] for doc in documents("PersistentVolumeClaim")
    }
    prefix = "spark.kubernetes.executor.volumes.persistentVolumeClaim."
    for mount in container["volumeMounts"]:
        volume = prefix + mount["name"]
        assert found[f"{volume}.options.claimName"] == claims[mount["name"]]
        assert found[f"{volume}.mount.path"] == mount["mountPath"]
        read_only = found.get(f"{volume}.mount.readOnly", "false") == "true"
        assert read_only == mount.get("readOnly", False)
    (tables,) = (
        doc for doc in documents("PersistentVolumeClaim") if doc["metadata"]["name"] == "tables"
    )
    assert tables["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_command_of_the_job_has_options_that_there_are() -> None:
    ((_, *words),) = commands("analyze")
    context = analyze.make_context("analyze", words)
    assert context.params["captures"] == ("/captures/$day",)
    assert context.params["out"] == "/tables/$day"
    assert context.params["master"].startswith("k8s://https://")


def test_the_commands_of_the_job_of_a_lake_have_options_that_there_are() -> None:
    (_, *words), *upkeep = commands("lake")
    context = analyze.make_context("analyze", words)
    assert (context.params["captures"], context.params["append"]) == (("/captures",), True)
    assert context.params["master"].startswith("k8s://https://")
    assert [words[:2] for words in upkeep] == [
        ["lake", "compact"], ["lake", "expire"], ["lake", "vacuum"]
    ]  # fmt: skip
    for _, name, *words in upkeep:
        params = lake.commands[name].make_context(name, words).params
        assert params["lake"] == context.params["out"]


def test_the_image_has_what_the_jobs_need() -> None:
    extras = [extra for _, words in instructions() for extra in re.findall(r"\[([\w,]+)\]", words)]
    assert {"spark", "report", "tls", "lake"} <= set(extras[0].split(","))


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_image_is_made_of_instructions_in_a_valid_order() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    assert next(name for name, _ in found if name != "ARG") == "FROM"
    stages = [words.split(" AS ")[1] for name, words in found if name == "FROM" and " AS " in words]
    for name, words in found:
        for stage in re.findall(r"--from=(\S+)", words):
            assert name == "COPY"
            assert stage in stages
        if name == "ENTRYPOINT":
            assert words == '["/opt/entrypoint.sh"]'
    for name, words in found:
        if name == "RUN" and "apt-get install" in words:
            assert "apt-get update" in words
            assert "--no-install-recommends" in words
            assert "rm -rf /var/lib/apt/lists" in words


def test_the_image_does_not_run_as_root() -> None:
    users = [words for name, words in instructions() if name == "USER"]
    assert users == ["185"]
    for name in JOBS:
        assert pod(name)["securityContext"]["runAsUser"] == 185
        assert pod(name)["securityContext"]["runAsNonRoot"]


def test_the_image_has_the_spark_that_the_tests_have() -> None:
    (locked,) = re.findall(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.M)
    (version,) = (
        words.partition("=")[2]
        for name, words in instructions()
        if name == "ARG" and words.startswith("SPARK_VERSION=")
    )
    assert version == locked.rstrip("\\").strip()
