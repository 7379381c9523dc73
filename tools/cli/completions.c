/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade completions bash|zsh`: the completion script of a shell, from the table of options. The build runs it and
 * installs the results, so a new option is completed without an entry elsewhere. Values of choices and names of
 * presets are completed; after other options the shell offers files. Words after the "--" of `lade launch` are
 * completed as a command of their own, and in zsh those of `lade run` too.
 */
#include <errno.h>
#include <string.h>

#include "base/base.h"
#include "graph/experts.h"
#include "graph/model_graph.h"
#include "machine/cluster.h"
#include "machine/machine.h"
#include "tools/cli/options.h"
#include "tools/cli/verbs.h"

static const enum verb_id verbs[] = {VERB_TRAIN, VERB_SWEEP,  VERB_PLAN, VERB_DATA, VERB_SAMPLE,
                                     VERB_REPLAY, VERB_DOCTOR, VERB_RUN,  VERB_BENCH};

/* Verbs that read their few words themselves. */
static const struct {
  const char *name, *words;
} others[] = {{"launch", "-n --max-restarts --elastic --help"}, {"completions", "bash zsh --help"}};

static bool is_of(const struct option *option, enum verb_id verb)
{
  return option->name && (option->verbs & verb);
}

/* Options that take the name of a preset or a file, and the verbs that know these presets. */
static const struct {
  const char *option;
  unsigned verbs;
  const char *(*name)(int i);
} presets[] = {{"model", ~0u, lade_model_preset_name},
               {"model", VERB_PLAN, lade_experts_preset_name},
               {"machine", ~0u, lade_machine_preset_name},
               {"cluster", ~0u, lade_cluster_preset_name}};

static bool has_presets(const struct option *option)
{
  for (size_t k = 0; k < LADE_COUNT(presets); k++)
    if (strcmp(presets[k].option, option->name) == 0)
      return true;
  return false;
}

/* Print the choices or presets of an option of @verb, separated by blanks; nothing if it has none. */
static void choices_print(const struct option *option, enum verb_id verb)
{
  int n = 0;
  for (size_t k = 0; k < LADE_COUNT(presets); k++) {
    const bool is_known = strcmp(presets[k].option, option->name) == 0 && (presets[k].verbs & verb);
    for (int i = 0; is_known && presets[k].name(i); i++)
      printf("%s%s", n++ ? " " : "", presets[k].name(i));
  }
  for (const struct option_choice *choice = option->choices; choice && choice->text; choice++)
    printf("%s%s", n++ ? " " : "", choice->text);
}

/* ---- bash ---- */

static void bash_verb_print(enum verb_id verb)
{
  printf("    %s)\n      options=\"", verb_name(verb));
  for (const struct option *option = option_table; option->help; option++)
    if (is_of(option, verb))
      printf(" --%s", option->name);
  printf("\"\n      case $before in\n");
  for (const struct option *option = option_table; option->help; option++) {
    if (!is_of(option, verb) || option->type == OPTION_FLAG)
      continue;
    printf("        --%s) values=\"", option->name);
    choices_print(option, verb);
    printf("\"; is_value=1 ;;\n");
  }
  puts("      esac ;;");
}

static void bash_print(void)
{
  puts("# bash completion of lade, made by `lade completions bash`\n"
       "_lade() {\n"
       "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} options= values= is_value=\n"
       "  local verb=${COMP_WORDS[1]} first=1 i\n"
       "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
       "    if [ \"$verb ${COMP_WORDS[i]}\" = 'launch --' ]; then first=$((i + 1)) verb=${COMP_WORDS[i+1]}; fi\n"
       "  done\n"
       "  if [ \"$before\" = = ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
       "  if [ \"$current\" = = ]; then current=; fi\n"
       "  COMPREPLY=()\n"
       "  case $verb in");
  for (size_t i = 0; i < LADE_COUNT(verbs); i++)
    bash_verb_print(verbs[i]);
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    printf("    %s) options=\"%s\" ;;\n", others[i].name, others[i].words);
  printf("  esac\n  if [ \"$COMP_CWORD\" = $first ]; then\n    options=\"--help --version");
  for (size_t i = 0; i < LADE_COUNT(verbs); i++)
    printf(" %s", verb_name(verbs[i]));
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    printf(" %s", others[i].name);
  puts("\"\n  fi\n"
       "  [ -n \"$is_value\" ] && options=$values\n"
       "  COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
       "}\n"
       "complete -o default -F _lade lade");
}

/* ---- zsh ---- */

/* Print @text inside a quoted specification of _arguments, where brackets, colons and quotes have meanings. */
static void zsh_text_print(const char *text)
{
  for (; *text; text++) {
    if (*text == '\'')
      fputs("'\\''", stdout);
    else
      printf("%s%c", strchr("[]:\\", *text) ? "\\" : "", *text);
  }
}

static void zsh_option_print(const struct option *option, enum verb_id verb)
{
  printf("      '%s--%s%s[", option->type == OPTION_FILES ? "*" : "", option->name,
         option->type == OPTION_FLAG ? "" : "=");
  zsh_text_print(option->help);
  putchar(']');
  if (option->type != OPTION_FLAG) {
    putchar(':');
    zsh_text_print(option->metavar);
    putchar(':');
    if (has_presets(option)) {
      fputs("{compadd -- ", stdout);
      choices_print(option, verb);
      fputs("; _files}", stdout);
    } else if (option->choices) {
      putchar('(');
      choices_print(option, verb);
      putchar(')');
    } else if (option->type == OPTION_TEXT || option->type == OPTION_FILES) {
      fputs("_files", stdout);
    }
  }
  puts("' \\");
}

static void zsh_print(void)
{
  puts("#compdef lade\n# zsh completion of lade, made by `lade completions zsh`\n_lade() {\n  local verb=$words[2]");
  printf("  if (( CURRENT == 2 )); then\n    compadd --");
  for (size_t i = 0; i < LADE_COUNT(verbs); i++)
    printf(" %s", verb_name(verbs[i]));
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    printf(" %s", others[i].name);
  puts(" --help --version\n    return\n  fi\n  shift words; (( CURRENT-- ))\n"
       "  local rest=${words[(i)--]}\n"
       "  if [[ $verb == launch ]] && (( rest < CURRENT )); then\n"
       "    words=(lade \"${(@)words[rest+1,-1]}\"); (( CURRENT -= rest - 1 )); _lade; return\n"
       "  elif [[ $verb == run ]] && (( rest < CURRENT )); then\n"
       "    words=(\"${(@)words[rest+1,-1]}\"); (( CURRENT -= rest )); _normal; return\n"
       "  fi\n"
       "  case $verb in");
  for (size_t i = 0; i < LADE_COUNT(verbs); i++) {
    printf("    %s) _arguments \\\n", verb_name(verbs[i]));
    for (const struct option *option = option_table; option->help; option++)
      if (is_of(option, verbs[i]))
        zsh_option_print(option, verbs[i]);
    puts("      '*:file:_files' ;;");
  }
  for (size_t i = 0; i < LADE_COUNT(others); i++)
    printf("    %s) compadd -- %s; _files ;;\n", others[i].name, others[i].words);
  puts("  esac\n}\n_lade \"$@\"");
}

/* ---- the verb ---- */

static void help_print(void)
{
  puts("Examples:\n"
       "  lade completions bash > ~/.local/share/bash-completion/completions/lade\n"
       "  lade completions zsh > ~/.zfunc/_lade            a directory of fpath\n"
       "\nUsage: lade completions bash|zsh\n"
       "Prints the completions of a shell. Installed ones are found without it.");
}

int completions_main(int argc, char **argv)
{
  struct lade_error error;
  const char *shell = argc > 1 ? argv[1] : "";
  if (strcmp(shell, "--help") == 0 || strcmp(shell, "-h") == 0) {
    help_print();
    return LADE_EXIT_DONE;
  }
  if (argc == 2 && strcmp(shell, "bash") == 0)
    bash_print();
  else if (argc == 2 && strcmp(shell, "zsh") == 0)
    zsh_print();
  else
    return exit_fail("completions", lade_error_set(&error, -EINVAL, "%s'%.64s': expected bash or zsh; lade completions "
                                                   "--help", argc > 2 ? "more than " : "", shell), &error);
  return LADE_EXIT_DONE;
}
