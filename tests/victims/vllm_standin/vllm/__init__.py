"""As much of vLLM as its plugins for the sleep mode meet: a stand-in, written for tests."""
