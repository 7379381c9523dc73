/* SPDX-License-Identifier: Apache-2.0 */
/* A model as the config.json that transformers reads, and the numbers by which two models differ. */
#ifndef LADE_GRAPH_MODEL_JSON_H
#define LADE_GRAPH_MODEL_JSON_H

#include <jansson.h>

#include "graph/model_graph.h"

/* Return the object of the model's config.json, which the caller owns; NULL: out of memory. Any thread. */
json_t *lade_model_json(const struct lade_model *model);

/*
 * Return the name of a number that changes the model's function but no tensor's shape and that differs between the two;
 * NULL: none. Numbers that only other families use are equal. Static text.
 */
const char *lade_model_difference(const struct lade_model *a, const struct lade_model *b);

/* Return a hash of those of these numbers that GPT-2 and Llama have at zero; 0 if all are zero. */
uint64_t lade_model_key(const struct lade_model *model);

#endif
