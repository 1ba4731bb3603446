"""`nightmill up` and what `run` starts when nothing runs: broker, API and worker as child processes."""
