"""Runs on other machines: `hocket submit` and `hocket join`.

`hocket submit` makes a run a job of a scheduler, which is stopped, requeued and resumed:
`command.py` reads the options and checks what can be checked before the job waits in a queue;
`scheduler.py` says what the job asks for, and hands it over through submitit (the extra `slurm`);
`job.py` is what then runs on every node. Nothing else imports submitit. `join.py` lets learners
into a run that is under way.
"""
