"""Shipping the installed polymux to the workers of a cluster.

Python cannot import compiled modules from an archive, so `--py-files` with a wheel or zip does not
work. Spark unpacks the archives in `spark.archives` into the working directory of each executor,
and a relative PYTHONPATH makes the workers import from there. The workers need the same Python
version and platform as the driver, with PySpark and pyarrow installed.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from polymux.spark.runtime.spark_home import package_folder

UNPACKED_FOLDER = "polymux_pkg"
DISCOVERY_PACKAGE = "pyspark_polymux"  # by it Spark finds the data source
CORE_DEPENDENCIES = ("librt", "mypy_extensions")  # imports of the core besides the stdlib


def pack(target: Path) -> None:
    """Write polymux, its compiled modules and the core's dependencies to the zip file `target`."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path, name in _entries():
            file.write(path, name)


def write_artifacts(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write what `pack` packs as artifacts of a Spark Connect session; return archives and files.

    Spark puts both into the working directory of the session's workers, from which Python imports:
    an archive `NAME.zip` as the folder NAME, so that a compiled module is a file there. A package
    is therefore an archive of what is in its folder.
    """
    archives: dict[Path, zipfile.ZipFile] = {}
    files: list[Path] = []
    with ExitStack() as stack:
        for path, name in _entries():
            package = name.parts[0]
            if len(name.parts) == 1:
                files.append(path)
                continue
            archive = folder / f"{package}.zip"
            if archive not in archives:
                zipped = zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
                archives[archive] = stack.enter_context(zipped)
            archives[archive].write(path, name.relative_to(package))
    return list(archives), files


def shipping_settings(archive: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that ship `archive` to the executors, merged with those in `conf`."""
    archives = conf.get("spark.archives", "")
    path = conf.get("spark.executorEnv.PYTHONPATH", "")
    return {
        "spark.archives": ",".join(filter(None, [f"{archive}#{UNPACKED_FOLDER}", archives])),
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, [UNPACKED_FOLDER, path])),
    }


def _entries() -> Iterator[tuple[Path, Path]]:
    """Yield every file to be shipped, and its path as Python imports it."""
    package = package_folder()
    yield from _tree(package)
    discovery = package.parent / DISCOVERY_PACKAGE
    if discovery.is_dir():
        yield from _tree(discovery)
    for shared in _shared_modules(package):
        yield shared, Path(shared.name)
    for name in CORE_DEPENDENCIES:
        spec = find_spec(name)
        if spec is None:
            continue  # only a compiled core needs it, so this one is not compiled
        if spec.submodule_search_locations:
            for folder in spec.submodule_search_locations:
                yield from _tree(Path(folder))
        elif spec.origin is not None:
            yield Path(spec.origin), Path(Path(spec.origin).name)


def _tree(folder: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, path.relative_to(folder.parent)


def _shared_modules(package: Path) -> list[Path]:
    """Return the module beside the package into which mypyc puts the code of all modules."""
    beside = {path.resolve() for path in package.parent.glob("*__mypyc*.so")}
    try:
        listed = metadata.distribution("polymux").files or []
    except metadata.PackageNotFoundError:
        return sorted(beside)
    installed = {Path(str(entry.locate())).resolve() for entry in listed}
    # Other packages compiled by mypyc put theirs into the same folder.
    return sorted(beside & installed or beside)
