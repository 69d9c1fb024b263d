"""`gcr serve`: an HTTP front that starts, parks and wakes jobs by the requests that come. docs/serve.md is for users.

One process, one event loop. `edge` has the clients' connections. Plain requests go by `lane` and `link` (httptools),
all others by `front` and `proxy` (aiohttp). `pool` moves models between the states of `states` as `plan` says,
`policies` choose, `jobs` asks gcr, `metrics` counts. The command line imports `config`, and `server` once it is to
serve: the libraries of the extra `serve` are needed from there on.
"""
