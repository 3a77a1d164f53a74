/* What the files of ir share. */
#ifndef ENGINE_TEXT_GRAMMAR_IR_IMPL_H
#define ENGINE_TEXT_GRAMMAR_IR_IMPL_H

#include "engine/text/grammar/ir.h"

/* Takes left recursion out of the rules (recursion.c). */
int eng_ir_unwind(struct eng_ir *ir, struct cn_error *err);
/* Computes the costs (cost.c). */
int eng_ir_weigh(struct eng_ir *ir);
/* Least tokens of a symbol, white space left out; UINT32_MAX: none exists. */
uint32_t eng_ir_cost(const struct eng_ir *ir, struct eng_sym s);

/* The same of an item that must differ from others: what is enough in nearly all cases. */
enum { ENG_COST_ANEW = 4 }; /* tokens more, of an item with parts */
uint32_t eng_ir_cost_anew(const struct eng_ir *ir, struct eng_sym s);

/* Asks ir->rx.keep_going; false: rx.code is set. */
bool eng_ir_goes_on(struct eng_ir *ir);

static inline uint32_t eng_cost_add(uint32_t a, uint32_t b)
{
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

#endif
