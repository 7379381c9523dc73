/* SPDX-License-Identifier: Apache-2.0 */
/* Escape text for XML. */
#include "tools/report/xml_text.h"

void xml_text_write(FILE *file, const char *text)
{
  for (; *text; text++) {
    unsigned char letter = (unsigned char)*text;
    if (letter == '&' || letter == '<' || letter == '>')
      fprintf(file, "&#%d;", letter);
    else
      fputc(letter < ' ' || letter == 127 ? '?' : letter, file);
  }
}
