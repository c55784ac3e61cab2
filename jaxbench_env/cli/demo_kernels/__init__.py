"""Two of the attempts that `jaxbench demo` steps, as kernel texts; never imported."""
