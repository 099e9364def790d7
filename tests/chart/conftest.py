"""helm, or a reason why there is none."""

import pytest

from tests.chart import helm as helm_program
from tests.conftest import REQUIRED


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """Needed by every test here."""
    if reason := helm_program.absent():
        (pytest.fail if "helm" in REQUIRED else pytest.skip)(reason)
