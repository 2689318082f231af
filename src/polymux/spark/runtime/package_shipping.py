"""Shipping the installed polymux to the workers of a cluster.

Python cannot import compiled modules from an archive, so `--py-files` with a wheel or zip does not
work. Spark unpacks the archives in `spark.archives` into the working directory of each executor,
and a relative PYTHONPATH makes the workers import from there. The workers need the same Python
version and platform as the driver, with PySpark and pyarrow installed.
"""

import zipfile
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from polymux.spark.runtime.spark_home import package_folder

UNPACKED_FOLDER = "polymux_pkg"
DISCOVERY_PACKAGE = "pyspark_polymux"  # by it Spark finds the data source
CORE_DEPENDENCIES = ("librt", "mypy_extensions")  # imports of the core besides the stdlib


def pack(target: Path) -> None:
    """Write polymux, its compiled modules and the core's dependencies to the zip file `target`."""
    package = package_folder()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        _add_tree(file, package, package.parent)
        discovery = package.parent / DISCOVERY_PACKAGE
        if discovery.is_dir():
            _add_tree(file, discovery, package.parent)
        for shared in _shared_modules(package):
            file.write(shared, shared.name)
        for name in CORE_DEPENDENCIES:
            spec = find_spec(name)
            if spec is None:
                continue  # only a compiled core needs it, so this one is not compiled
            if spec.submodule_search_locations:
                for folder in spec.submodule_search_locations:
                    _add_tree(file, Path(folder), Path(folder).parent)
            elif spec.origin is not None:
                file.write(spec.origin, Path(spec.origin).name)


def shipping_settings(archive: Path, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that ship `archive` to the executors, merged with those in `conf`."""
    archives = conf.get("spark.archives", "")
    path = conf.get("spark.executorEnv.PYTHONPATH", "")
    return {
        "spark.archives": ",".join(filter(None, [f"{archive}#{UNPACKED_FOLDER}", archives])),
        "spark.executorEnv.PYTHONPATH": ":".join(filter(None, [UNPACKED_FOLDER, path])),
    }


def _add_tree(file: zipfile.ZipFile, folder: Path, root: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            file.write(path, path.relative_to(root))


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
