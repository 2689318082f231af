"""What a lake is told when it is made, and keeps: its format, and its id.

The id tells lakes apart that share a catalog, also one that was deleted and made anew at its place.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Final

from polymux.spark.lake.storage import Storage
from polymux.spark.lake.store import FORMATS, LakeError

SETTINGS_NAME: Final = "_lake/settings"


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The format of a lake, one of `store.FORMATS`, and its id; "" if an older polymux made it."""

    format: str
    id: str


def create_settings(storage: Storage, format: str) -> None:
    """Make a lake of this format, unless there is one."""
    found = {"polymux-lake": 1, "format": format, "id": uuid.uuid4().hex}
    storage.create(SETTINGS_NAME, json.dumps(found).encode())


def read_settings(storage: Storage) -> LakeSettings | None:
    """The settings of the lake in a storage; None if there is none.

    Raises:
        LakeError: They cannot be read, or a newer polymux has written them.
    """
    try:
        settings = json.loads(storage.read_created(SETTINGS_NAME))
        if settings["polymux-lake"] != 1 or settings["format"] not in FORMATS:
            raise ValueError(settings)
        return LakeSettings(str(settings["format"]), str(settings.get("id", "")))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LakeError(
            f"{storage.location}: its {SETTINGS_NAME} is not known; a newer polymux may have "
            "written this lake"
        ) from None
