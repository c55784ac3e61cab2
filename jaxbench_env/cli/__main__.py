"""`python -m jaxbench_env.cli` is `jaxbench`."""

from jaxbench_env.cli.main import main

if __name__ == "__main__":
    main()
