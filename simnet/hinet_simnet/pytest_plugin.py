"""The pytest plugin: households of real agents in virtual time, as fixtures for anybody's tests."""
