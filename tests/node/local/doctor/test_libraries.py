"""Whether installed libraries fit what is asked for."""

import pytest

from hinet_node.local.doctor.libraries import fits, unfit


@pytest.mark.parametrize(("there", "bounds", "held"), [
    ("0.8.1", "==0.8.1", True), ("0.8.10", "==0.8.1", False), ("0.34", ">=0.31,<0.36", True), ("0.36", "<0.36", False),
    ("0.36.0", "<0.36", False), ("1.10", ">=1.9", True), ("2.0rc1", ">=1", True), ("1.4.5", "~=1.4.2", True),
    ("1.5.0", "~=1.4.2", False), ("1.4.1", "~=1.4.2", False), ("1.4.9", "==1.4.*", True), ("1.5", "!=1.5.*", False),
    ("5", "", True), ("3.0", ">3,!=4", False)])
def test_versions_are_compared_by_their_numbers(there: str, bounds: str, held: bool) -> None:
    assert fits(there, bounds) is held


def test_a_program_that_was_never_installed_says_nothing() -> None:
    assert unfit("no-such-program-of-ours") == ()


def test_the_libraries_of_an_installed_program_are_looked_up() -> None:
    assert unfit("pytest") == ()
