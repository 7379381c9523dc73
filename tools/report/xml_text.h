/* SPDX-License-Identifier: Apache-2.0 */
/* Text in drawings and pages. */
#ifndef LADE_XML_TEXT_H
#define LADE_XML_TEXT_H

#include <stdio.h>

/*
 * Write UTF-8 text between tags. XML's special characters are escaped; characters that XML forbids become question
 * marks.
 */
void xml_text_write(FILE *file, const char *text);

#endif
