"""One set of evaluating processes for all environments of a machine.

Without it every process that evaluates has a zygote and judges of its own. With it they belong to
one service process per user, which the first client starts (`client`) and which ends when nobody
needs it (`server`). Clients reach it by a socket that only the user can open (`address`); there is
one service for each version of the code, the compiler and the cache directory, so that nobody
talks to one that would decide otherwise.

A client gets verdicts and nothing else: secret inputs stay in the judges, behind the service.
"""
