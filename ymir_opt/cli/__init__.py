"""The command line ``ymir-plan``: reads files, calls the rooms below, renders what they return."""
