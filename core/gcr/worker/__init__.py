"""The worker: holds the vendor context of one device and moves bytes between it and the arena. Disposable."""
