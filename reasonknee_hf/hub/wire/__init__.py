"""Requests and answers: clients, endpoints, tokens, what is checked, what is tried again."""
