/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to tokens and back by a tokenizer.json, through a process of the Python package lade (its module data.prompt).
 * One thread at a time. If that process ends early, it has printed its own line, and calls return -ECHILD; the exit
 * code is then in *ret_code of token_text_close.
 */
#ifndef LADE_TOKEN_TEXT_H
#define LADE_TOKEN_TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "lade/types.h"

struct token_text;

/* Start the process for the tokenizer's file @path. The caller closes *ret_text. -ENOSYS: no Python; -ENOMEM. */
int token_text_open(const char *path, struct lade_error *error, struct token_text **ret_text);

/*
 * Convert the prompt to tokens, once and first. The caller frees *ret_tokens. -EINVAL: @prompt is not UTF-8; -ECHILD,
 * -ENOMEM.
 */
int token_text_encode(struct token_text *text, const char *prompt, struct lade_error *error, int32_t **ret_tokens,
                      int64_t *ret_n_tokens);

/* Print the text that @token completes on stdout. -ECHILD, -ENOMEM. */
int token_text_print(struct token_text *text, int32_t token, struct lade_error *error);

/* Print the text that is left if @has_rest, end the process and free @text (may be NULL). *ret_code: its exit code. */
void token_text_close(struct token_text *text, bool has_rest, int *ret_code);

#endif
