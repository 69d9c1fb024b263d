"""Host memory that holds device memory's bytes: the arena, its segments and their layout, and the escrow."""
