"""As much of SGLang as its plugins for releasing memory meet: a stand-in, written for tests."""
