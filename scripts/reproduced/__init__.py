"""The four methods with the template proposer: episodes, and the page about them."""
