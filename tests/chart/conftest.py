"""helm, or a reason why there is none."""

import pytest

from tests.chart import helm as helm_program
from tests.conftest import REQUIRED


@pytest.fixture(scope="session", autouse=True)
def helm() -> None:
    """Needed by every test here."""
    if helm_program.program() is None:
        reason = "helm is not here: `make tools` puts it into .tools/bin"
        if "helm" in REQUIRED:
            pytest.fail(reason)
        pytest.skip(reason)
