"""Optional packages."""

from __future__ import annotations

import pytest

from protos.errors import NotFound
from protos.rooms import imported, is_installed


@pytest.mark.parametrize("member", ["protos.no_module:f", "protos.no_package.module:f"])
def test_missing_package_is_refused_with_a_cure(member):
    assert not is_installed(member)
    with pytest.raises(NotFound, match=r"lacks protos\.no_") as caught:
        imported(member)
    assert "Install imbrex again" in caught.value.cure


def test_installed_member_is_imported_by_name():
    assert is_installed("protos.rooms:imported")
    assert imported("protos.rooms:imported") is imported


def test_errors_inside_an_optional_package_are_its_own(tmp_path, monkeypatch):
    (tmp_path / "broken_room.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        imported("broken_room:f")
