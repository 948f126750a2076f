from tests.cli.conftest import desk as desk
