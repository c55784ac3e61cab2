"""The judge: decides on artefacts, and never imports or runs a candidate's text."""
