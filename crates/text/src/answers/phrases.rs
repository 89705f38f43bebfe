//! The phrases of answers, by their gist. A phrase is listed as people write it; letter case, accents and punctuation are
//! ignored. A phrase belongs here only if it means the same in every language of the table.

use super::words::Gist;

pub(super) const PHRASES: &[(Gist, &str)] = &[
    // In all languages
    (
        Gist::Grant,
        "approve, approve once, allow, allow once, accept, confirm, permit, grant, agree, erlaube, erlauben, \
         einmal erlauben, genehmige, genehmigen, bestätige, bestätigen, zulassen, zustimmen, freigeben, autoriser, \
         autorise, approuver, approuve, accepter, accepte, confirmer, confirme, permitir, permite, aprobar, aceptar, \
         autorizar, confirmar, aprovar, aprove, aceitar, aceite, consenti, approva, accetta, autorizza, conferma, \
         toestaan, goedkeuren, разрешить, разреши, одобрить, подтвердить, дозволити, onayla, onay, izin ver, kabul, \
         zezwól, zatwierdź, akceptuj, povolit, schválit, tillåt, tillad, tillat, godkänn, godkend, godkjenn, 同意, 允许, 允許, \
         批准, 准许, 許可, 许可, 确认, 確認, 确定, 確定, 接受, 通过, 通過, 承認, 승인, 승인해, 허용, 허용해, 확인, 동의",
    ),
    (
        Gist::Please,
        "please, pls, bitte, s'il te plaît, s'il vous plaît, por favor, per favore, alsjeblieft, alstublieft, \
         пожалуйста, будь ласка, lütfen, proszę, prosím, 请, 請, ください",
    ),
    (
        Gist::Thanks,
        "thanks, thank you, thx, thanks a lot, many thanks, thank you very much, thanks very much, thank you so much, \
         thanks so much, well done, danke, merci, gracias, obrigado, obrigada, grazie, dank je, dank u, bedankt, \
         спасибо, дякую, teşekkürler, teşekkür ederim, dziękuję, dzięki, děkuji, tack, tak for det, takk, 谢谢, 謝謝, ありがとう, \
         ありがとうございます, 감사합니다, 고마워, 고마워요",
    ),
    (
        Gist::Ease,
        "problem, problems, problema, problemas, problemi, problème, problèmes, probleem, problemen, probleme, problemu, \
         problemów, проблем, проблема, проблемы, issue, issues, objection, objections, object, concern, concerns, \
         complaint, complaints, worry, worries, question, questions, doubt, doubts, none, nothing, anything, cool, mind, \
         opposed, against, reason, why, wait, hesitate, hinder, not, isnt, arent, doesnt, cant, cannot, wont, without, \
         nobody, einwand, einwände, einwaende, bedenken, frage, fragen, thema, nichts, kein, keine, keinen, keins, \
         nicht, dagegen, ruhig, inconvénient, souci, soucis, rien, aucun, aucune, pas, contre, objeción, objeciones, \
         inconveniente, nada, ninguno, ninguna, ningún, objeção, objeções, nenhum, nenhuma, obiezione, obiezioni, \
         niente, nulla, nessuno, nessun, nessuna, contrario, bezwaar, bezwaren, geen, niets, niet, возражений, возражаю, \
         вопросов, ничего, против, не, заперечень, sorun, itiraz, itirazım, yok, sakınca, değil, zastrzeżeń, przeciw, \
         przeciwko, sprzeciwu, nic, ingen, inga, inget, inte, ikke, ikkje, 问题, 問題, 意见, 意見, 异议, 異議, 没, 没有, 沒有, 没事, 无, ない, \
         なし, ません, 異存, 문제, 이의, 없어, 없어요, 없습니다",
    ),
    (
        Gist::Fine,
        "good, great, perfect, fine, nice, thats fine, that is fine, its fine, it is fine, thats ok, that is ok, its ok, \
         it is ok, thats good, that is good, thats okay, that is okay, is fine, is ok, is okay, passt, passt so, gut, \
         sehr gut, c'est bon",
    ),
    (Gist::Lead, "right"),
    // Polish and Ukrainian yes; Danish thanks, and Russian "so".
    (Gist::Half, "tak, так"),
    (Gist::Once, "once, una vez, une fois, uma vez, una volta, einmal, raz, bir kez, 一度, 一次"),
    (
        Gist::It,
        "it, that, this, this call, the call, with it, with that, with this, to it, to that, to this, es, das, dies, \
         это",
    ),
    (
        Gist::Says,
        "user, the user, the user said, user said, the user says, user says, the user answered, user answered, \
         the user answers, the user replied, user replied, the user chose, user chose, decision, answer, the answer is, \
         my answer is, choice",
    ),
    (
        Gist::Yes,
        "the user approved, user approved, the user has approved, user has approved, the user approves, the user agreed, \
         user agreed, the user has agreed, user has agreed, the user agrees, the user allowed, user allowed, \
         the user has allowed, the user confirmed, user confirmed, the user accepted, user accepted, ok then, okay then, \
         yes then, sure then, alright then, go ahead then",
    ),
    (
        Gist::Go,
        "looks good to me, looks right to me, looks fine to me, sounds good to me, fine for me, ok for me, \
         im fine with it, im ok with it, im fine with that, im ok with that, execute it, publish it, submit it, post it",
    ),
    (
        Gist::Bare,
        "the user denied, user denied, the user has denied, the user declined, user declined, the user has declined, \
         the user refused, user refused, the user rejected, user rejected, none of these, nie dziękuję",
    ),
    (
        Gist::Doubt,
        "all good, its all good, yeah right, yea right, sure right, alles gut, tudo bem, tutto bene, всё хорошо, \
         да ладно, сейчас, not at all, not a problem, make it happen, make it live, good luck",
    ),
    (
        Gist::All,
        "all, to all, for all, all of it, all of them, to all of them, for all of them, all calls, everything, \
         alle, allen, zu allen, für alle, fuer alle, alles, zu allem, tous, toutes, à tous, pour tous, tout, à tout, \
         todos, todas, a todos, a todas, para todos, todo, a todo, tudo, a tudo, tutti, tutte, a tutti, per tutti, \
         allemaal, voor allemaal, все, всё, на всё, hepsi, hepsine, wszystkie, wszystko, všechny, всі, 全部, 所有, すべて, 全て, \
         모두, 전부",
    ),
    // English
    (
        Gist::Yes,
        "yes, yep, yup, yeah, yea, yes yes, ok, okay, okey, okie, oke, o k, k, kk, sure, sure thing, surely, alright, \
         all right, of course, certainly, absolutely, definitely, affirmative, go ahead, go for it, please do, proceed, \
         by all means, i agree, agreed, agrees, i approve, approved, approves, i allow it, allowed, allows, accepted, \
         accepts, confirmed, confirms, permitted, granted, i do, i am sure, im sure, yes i am, you may, you can, \
         you have my permission, permission granted, lgtm, roger, aye, true, let it run, make it so, ship it",
    ),
    (
        Gist::Go,
        "go, do it, do that, do this, just do it, run it, run that, send it, continue, carry on, go on, correct, \
         thats right, that is right, thats correct, that is correct, sounds good, sounds great, looks good, looks great, \
         looks fine, looks right, works for me, fine by me, fine with me, ok with me, lets go, lets do it, lets do that, \
         i want that, i want it, i want this",
    ),
    (
        Gist::Always,
        "always allow, allow always, always approve, approve always, allow all session, allow for session, \
         allow for this session, allow for the session, allow this session",
    ),
    (
        Gist::Lasting,
        "always, every time, from now on, for this session, for the session, for session, for the rest of the session, \
         for the whole session, this session, dont ask again, dont ask me again, do not ask again, do not ask me again",
    ),
    (
        Gist::Bare,
        "no, dont, do not, no dont, stop, stop it, skip, skip it, no thanks, no thank you, no way, never, negative, \
         deny, denied, denies, reject, rejected, rejects, refuse, refused, refuses, decline, declined, declines, \
         disallow, disallowed, forbid, forbidden, veto, false, cancel, cancelled, canceled, cancels, abort, not now, \
         not yet, not ok, not okay, not this time, not allowed, rather not, id rather not, i would rather not, \
         better not, id prefer not to, of course not, certainly not, absolutely not, definitely not, hell no, \
         dont do it, dont do that, dont do this, do not do it, do not do that, do not do this, dont run it, \
         do not run it, dont send it, do not send it, dont allow, do not allow, dont allow it, do not allow it, \
         dont proceed, do not proceed, never allow, i disagree, disagree, i refuse, i dont agree, i do not agree, \
         i dont approve, i do not approve, i dont want that, i do not want that, i dont want this, i do not want this, \
         i dont want it, i do not want it",
    ),
    (
        Gist::Doubt,
        "no problem, no problems, no prob, no worries, no worry, no objection, no objections, no issue, no issues, \
         no idea, no clue, no doubt, no matter, no rush, no hurry, no need, no comment, no concerns, no biggie, \
         no preference, no opinion, no change, no changes, no edits, no changes needed, no change needed, no question, \
         never mind, nevermind, never ask, dont know, i dont know, i do not know, do not know, dont care, i dont care, \
         dont mind, i dont mind, dont worry, do not worry, dont wait, dont stop, dont hesitate, dont ask, not sure, \
         im not sure, i am not sure, unsure, maybe, perhaps, possibly, probably, i guess, i think so, i suppose, hm, \
         hmm, hmmm, wait, hold on, later, it depends, depends",
    ),
    (Gist::Start, "make, change, use, add, remove, replace, drop, fix, rename, move, put, leave out, try"),
    (
        Gist::Change,
        "shorten, rewrite, rephrase, reword, too long, too short, too much, shorter, longer, instead",
    ),
    (Gist::But, "but, only, just, except, unless, if, however, provided, as long as"),
    (
        Gist::Filler,
        "well, now, right now, just once, only once, this time, just this once, just this time, only this time, \
         only this once, for now",
    ),
    // A no that can stand before any text, in all languages. "No" is not one: it also begins "no problem".
    (
        Gist::No,
        "nope, nah, no no, nein, nein nein, neen, nee, non non, não não, нет нет, ні, hayır, hayır hayır, nie nie, nej, \
         nei, いいえ, いえ, 아니요, 아니오, 아뇨",
    ),
    // German
    (
        Gist::Yes,
        "ja, jawohl, jo, jep, jup, joa, ja ja, ja bitte, ja gerne, ja klar, na klar, aber klar, aber ja, klar, klaro, \
         natürlich, natuerlich, selbstverständlich, selbstverstaendlich, sicher, gern, gerne, sehr gerne, in ordnung, \
         einverstanden, ich bin einverstanden, erlaubt, erlaube es, ich erlaube es, ich erlaube das, genehmigt, \
         ich genehmige es, bestätigt, zugelassen, ich stimme zu, stimme zu, freigegeben, nur zu, leg los, los, okidoki, \
         wahr",
    ),
    (
        Gist::Go,
        "mach das, mach es, machs, mach weiter, mach mal, genau, stimmt, sieht gut aus, klingt gut, weiter, so machen",
    ),
    (Gist::Always, "immer erlauben, immer zulassen, für diese sitzung erlauben"),
    (Gist::Lasting, "immer, für diese sitzung, fuer diese sitzung, diese sitzung, ab jetzt immer"),
    (
        Gist::Bare,
        "ne, nein danke, nie, niemals, ablehnen, abgelehnt, abbrechen, verweigern, verweigert, verboten, nicht erlauben, \
         nicht erlaubt, nicht einverstanden, auf keinen fall, auf gar keinen fall, lieber nicht, besser nicht, \
         bitte nicht, jetzt nicht, noch nicht, natürlich nicht, natuerlich nicht, sicher nicht, klar nicht, \
         mach das nicht, mach es nicht, falsch",
    ),
    (Gist::Doubt, "vielleicht, später, warte, keine ahnung, weiss nicht, nicht sicher"),
    (Gist::Start, "mach, ändere, aendere, nimm, ersetze, streiche, füge"),
    (Gist::Change, "kürzer, kuerzer, bitte kürzer, zu lang, zu kurz"),
    (Gist::But, "aber, nur, ausser, wenn, falls, sofern, allerdings"),
    (Gist::Filler, "jetzt, nur einmal, diesmal, nur diesmal, nur dieses mal, dieses mal"),
    // French
    (
        Gist::Yes,
        "oui, ouais, oui oui, d'accord, je suis d'accord, bien sûr, bien sur que oui, certainement, volontiers, vas-y, \
         allez-y, autorisé, j'autorise, approuvé, j'approuve, accepté, j'accepte, confirmé, je confirme, fais-le, \
         faites-le, vrai",
    ),
    (Gist::Go, "parfait, c'est bien, c'est parfait, très bien, exact, continue, continuez, ça marche"),
    (Gist::Always, "toujours autoriser, autoriser pour cette session"),
    (Gist::Lasting, "toujours, pour cette session"),
    (
        Gist::Bare,
        "non, nan, non merci, jamais, refuser, refuse, refusé, je refuse, rejeter, rejeté, interdire, annuler, annule, \
         pas d'accord, pas question, surtout pas, plutôt pas, pas maintenant, pas encore, bien sûr que non, \
         certainement pas, faux",
    ),
    (Gist::Doubt, "peut-être, plus tard, attends, attendez, pas sûr, je ne sais pas"),
    (Gist::Start, "remplace, remplacez, ajoute, ajoutez, enlève, change, changez"),
    (Gist::Change, "plus court, trop long, raccourcis"),
    (Gist::But, "mais, seulement, sauf, à condition"),
    (Gist::Filler, "maintenant, cette fois, seulement cette fois"),
    // Spanish, and what Italian and Portuguese write alike
    (
        Gist::Yes,
        "sí, si si, sí claro, claro, claro que sí, por supuesto, vale, de acuerdo, estoy de acuerdo, adelante, hazlo, \
         hágalo, dale, permitido, aprobado, apruebo, acepto, aceptado, autorizo, autorizado, confirmo, confirmado, \
         procede, proceda, cierto, verdadero",
    ),
    (Gist::Go, "está bien, bien, muy bien, perfecto, correcto, continúa, sigue, bueno"),
    (Gist::Always, "permitir siempre, permitir en esta sesión"),
    (Gist::Lasting, "siempre, para esta sesión"),
    (
        Gist::Bare,
        "no gracias, nunca, jamás, denegar, denegado, rechazar, rechazado, rechazo, cancelar, cancela, cancelado, \
         prohibir, de ninguna manera, mejor no, para nada, claro que no, por supuesto que no, ahora no, todavía no, \
         falso",
    ),
    (
        Gist::Doubt,
        "no hay problema, no pasa nada, no importa, no sé, no lo sé, no estoy seguro, no estoy segura, quizás, quizá, \
         tal vez, espera, luego",
    ),
    (Gist::Start, "cambia, cámbialo, quita, añade, usa"),
    (Gist::Change, "más corto, demasiado largo, acorta"),
    (Gist::But, "pero, sólo, solamente, excepto, salvo"),
    (Gist::Filler, "esta vez, solo esta vez, solo una vez"),
    // Portuguese
    (
        Gist::Yes,
        "sim, sim sim, com certeza, claro que sim, pode, podes, pode ser, pode fazer, pode sim, vá em frente, faça, \
         faz isso, concordo, aprovado, aprovo, aceito, permitido, beleza, certo, pode prosseguir, prossiga, verdadeiro",
    ),
    (Gist::Go, "está certo, perfeito, continue, ótimo"),
    (Gist::Always, "permitir sempre"),
    (Gist::Lasting, "nesta sessão, para esta sessão"),
    (
        Gist::Bare,
        "não, não obrigado, não obrigada, nao, negar, negado, rejeitar, rejeitado, recusar, recusado, recuso, \
         de jeito nenhum, melhor não, claro que não, agora não, ainda não",
    ),
    (
        Gist::Doubt,
        "não há problema, não tem problema, sem problema, não sei, não tenho certeza, não importa, talvez, depois, \
         espere",
    ),
    (Gist::Start, "mude, troque, remova, adicione, use"),
    (Gist::Change, "mais curto, muito longo, encurte"),
    (Gist::But, "mas, somente, apenas, exceto"),
    (Gist::Filler, "agora, desta vez, só desta vez"),
    // Italian
    (
        Gist::Yes,
        "sì sì, certo, certo che sì, certamente, va bene, vai, vai avanti, vai pure, fallo, fai pure, procedi, \
         d'accordo, sono d'accordo, consentito, approvato, approvo, accetto, accettato, autorizzo, confermo, confermato, \
         assolutamente sì, vero",
    ),
    (Gist::Go, "perfetto, esatto, giusto, va benissimo, continua"),
    (Gist::Always, "consenti sempre"),
    (Gist::Lasting, "sempre, per questa sessione"),
    (
        Gist::Bare,
        "no grazie, mai, nega, negato, rifiuta, rifiuto, rifiutato, annulla, annullato, assolutamente no, meglio di no, \
         certo che no, per niente, non ora, non adesso, non ancora, non farlo",
    ),
    (
        Gist::Doubt,
        "non c'è problema, nessun problema, non so, non lo so, non sono sicuro, non sono sicura, non importa, forse, \
         dopo, aspetta",
    ),
    (Gist::Start, "cambia, togli, aggiungi, sostituisci"),
    (Gist::Change, "più corto, troppo lungo, accorcia"),
    (Gist::But, "ma, però, soltanto, tranne, a condizione"),
    (Gist::Filler, "adesso, ora, questa volta, solo questa volta"),
    // Dutch
    (
        Gist::Yes,
        "jawel, ja hoor, ja graag, ja prima, ga je gang, ga door, ga maar, ga verder, doe maar, doe het, doe het maar, \
         is goed, dat is goed, prima, akkoord, zeker, zeker weten, natuurlijk, graag, toegestaan, sta toe, goedgekeurd, \
         keur goed, bevestigd",
    ),
    (Gist::Go, "goed, heel goed, klopt, ziet er goed uit, klinkt goed"),
    (Gist::Always, "altijd toestaan"),
    (Gist::Lasting, "altijd, voor deze sessie"),
    (
        Gist::Bare,
        "nee bedankt, nee dank je, nooit, weigeren, geweigerd, weiger, afwijzen, afgewezen, annuleren, annuleer, \
         liever niet, beter niet, doe maar niet, niet doen, zeker niet, natuurlijk niet, nu niet, nog niet, \
         niet toestaan",
    ),
    (Gist::Doubt, "geen probleem, misschien, later, wacht, geen idee, weet niet"),
    (Gist::Start, "maak, verander, vervang, voeg"),
    (Gist::Change, "korter, te lang"),
    (Gist::But, "maar, alleen, behalve, mits, als"),
    (Gist::Filler, "nu, deze keer, alleen deze keer, één keer"),
    // Russian and Ukrainian
    (
        Gist::Yes,
        "да, да да, ага, угу, конечно, да конечно, хорошо, ладно, ок, окей, давай, давайте, да давай, разрешаю, \
         разрешено, согласен, согласна, одобряю, одобрено, подтверждаю, можно, да можно, звичайно, добре, дозволяю, \
         згоден, згодна, истина",
    ),
    (Gist::Go, "верно, отлично, продолжай, продолжайте, подходит, делай, делайте"),
    (Gist::Always, "всегда разрешать"),
    (Gist::Lasting, "всегда, на эту сессию, на всю сессию, завжди"),
    (
        Gist::Bare,
        "нет, нет спасибо, не надо, не нужно, не стоит, нельзя, никогда, запретить, запрещаю, запрещено, отклонить, \
         отклоняю, отклонено, отказать, отказываю, отмена, отменить, отмени, конечно нет, лучше не надо, не сейчас, \
         пока нет, не согласен, не согласна, не разрешаю, не треба, заборонити, ложь",
    ),
    (
        Gist::Doubt,
        "нет проблем, без проблем, не знаю, не уверен, не уверена, может быть, возможно, позже, потом, подожди, \
         подождите",
    ),
    (Gist::Start, "сделай, сделайте, измени, измените, убери, добавь, замени"),
    (Gist::Change, "короче, слишком"),
    (Gist::But, "но, только, кроме, если, однако"),
    (Gist::Filler, "в этот раз, один раз, только один раз"),
    // Turkish
    (
        Gist::Yes,
        "evet, evet evet, tamam, tamamdır, olur, tabii, tabi, tabii ki, elbette, onaylıyorum, onaylandı, izin veriyorum, \
         kabul ediyorum, devam et, devam, yap, doğru",
    ),
    (Gist::Go, "güzel, iyi, çok iyi, harika, uygun"),
    (Gist::Always, "her zaman izin ver"),
    (Gist::Lasting, "her zaman, bu oturum için"),
    (
        Gist::Bare,
        "hayır teşekkürler, olmaz, reddet, reddediyorum, reddedildi, iptal, iptal et, izin verme, asla, yapma, \
         şimdi değil, henüz değil, yanlış",
    ),
    (Gist::Doubt, "sorun değil, sorun yok, bilmiyorum, emin değilim, belki, sonra, bekle"),
    (Gist::Start, "değiştir, ekle, çıkar"),
    (Gist::Change, "kısalt, daha kısa, çok uzun"),
    (Gist::But, "ama, fakat, ancak, sadece, yalnızca, eğer"),
    (Gist::Filler, "şimdi, bu sefer, sadece bu sefer"),
    // Polish and Czech
    (
        Gist::Yes,
        "jasne, oczywiście, pewnie, dobrze, dobra, zgoda, zgadzam się, zezwalam, zezwolono, zatwierdzam, zatwierdzono, \
         akceptuję, potwierdzam, śmiało, proszę bardzo, zrób to, kontynuuj, można, ano, jistě, samozřejmě, povoluji, \
         souhlasím, prawda",
    ),
    (Gist::Go, "świetnie, super, w porządku, idealnie, dalej"),
    (Gist::Always, "zawsze zezwalaj"),
    (Gist::Lasting, "zawsze, na tę sesję, vždy"),
    (
        Gist::Bare,
        "nie, nie dziękuję, nigdy, odmów, odmawiam, odrzuć, odrzucam, odrzucono, anuluj, zabroń, oczywiście że nie, \
         lepiej nie, nie teraz, jeszcze nie, nie zgadzam się, nie zezwalam, nie rób tego, odmítnout, zamítnout, zrušit, \
         nepovolit, fałsz",
    ),
    (
        Gist::Doubt,
        "nie ma problemu, nie ma sprawy, nie wiem, nie jestem pewien, nie jestem pewna, może, być może, później, \
         poczekaj",
    ),
    (Gist::Start, "zmień, dodaj, usuń, zamień"),
    (Gist::Change, "skróć, krócej, za długie"),
    (Gist::But, "ale, tylko, oprócz, jeśli, jeżeli"),
    (Gist::Filler, "teraz, tym razem, tylko tym razem, jeden raz"),
    // Swedish, Danish and Norwegian
    (
        Gist::Yes,
        "ja tack, ja takk, javisst, visst, självklart, selvfølgelig, naturligtvis, okej, kör, gärna, gerne",
    ),
    (Gist::Lasting, "alltid, altid"),
    (
        Gist::Bare,
        "nej tack, nej tak, nei takk, aldrig, aldri, neka, avslå, afvis, avvis, avbryt, afbryd, helst inte",
    ),
    (Gist::Filler, "nu, nå"),
    // Chinese
    (
        Gist::Yes,
        "是, 是的, 是啊, 对, 对的, 對, 對的, 好, 好的, 好啊, 好吧, 好呀, 可以, 可以的, 行, 行的, 嗯, 嗯嗯, 当然, 當然, 当然可以, 當然可以, 我同意, 没错, 沒錯, 执行, 執行, \
         执行吧, 做吧, 去做吧",
    ),
    (Gist::Go, "继续, 繼續, 请继续, 請繼續, 继续吧, 繼續吧, 发送吧, 没意见"),
    (Gist::Always, "始终允许, 始終允許, 总是允许, 總是允許, 本次会话允许, 一直允许"),
    (Gist::Lasting, "总是, 總是, 本次会话"),
    (
        Gist::Bare,
        "不, 不是, 不行, 不可以, 不要, 不同意, 不允许, 不允許, 不好, 不对, 不能, 不用, 不用了, 不必, 否, 拒绝, 拒絕, 取消, 别, 别这样, 禁止, 驳回, 不批准, 不可",
    ),
    (
        Gist::Doubt,
        "没问题, 沒問題, 不知道, 不确定, 不確定, 不好意思, 不要紧, 不要緊, 不客气, 不错, 不錯, 不清楚, 也许, 也許, 可能, 可能吧, 等等, 等一下, 稍后, 没关系, 不一定",
    ),
    (Gist::But, "但, 但是, 不过, 不過, 只, 只要, 只能, 除了, 如果"),
    (Gist::Filler, "现在, 現在, 这次, 這次, 仅此一次"),
    // Japanese
    (
        Gist::Yes,
        "はい, はいはい, うん, ええ, いいよ, いいですよ, オーケー, オッケー, もちろん, もちろんです, 了解, 了解です, 了解しました, 承知しました, 許可する, 許可します, 承認する, 承認します, \
         同意します, 同意する, どうぞ, 進めて, 進めてください, お願い, お願いします, おねがいします, 実行して, 実行してください, 続けて, 続けてください",
    ),
    (Gist::Always, "常に許可, 今後も許可, このセッションでは許可"),
    (Gist::Lasting, "常に, このセッション"),
    (
        Gist::Bare,
        "いや, だめ, だめです, ダメ, ダメです, 駄目, 駄目です, やめて, やめてください, 拒否, 拒否する, 拒否します, 却下, 却下します, キャンセル, 中止, 中止して, 許可しない, 許可しません, \
         しないで, しないでください, 遠慮します",
    ),
    (
        Gist::Doubt,
        "いいです, 結構です, 大丈夫, 大丈夫です, 問題ない, 問題ありません, 問題ないです, わからない, わかりません, 分からない, 分かりません, たぶん, 多分, 後で, ちょっと待って, 待って",
    ),
    (Gist::But, "でも, ただ, ただし, しかし, だけど, だけ, のみ"),
    (Gist::Filler, "です, それで, 今回, 今回は, 今回だけ"),
    // Korean
    (
        Gist::Yes,
        "네, 네네, 예, 응, 그래, 그래요, 그럼요, 물론, 물론이죠, 물론입니다, 좋아, 좋아요, 좋습니다, 오케이, 승인합니다, 허용합니다, 허락합니다, 동의합니다, 진행해, 진행해주세요, \
         진행해 주세요, 진행하세요, 계속해, 계속해 주세요, 해줘, 해 주세요, 부탁해요, 부탁합니다",
    ),
    (Gist::Always, "항상 허용"),
    (Gist::Lasting, "항상, 이 세션 동안, 이번 세션"),
    (
        Gist::Bare,
        "아니, 안돼, 안 돼, 안돼요, 안 돼요, 안됩니다, 안 됩니다, 싫어, 싫어요, 거부, 거부합니다, 거절, 거절합니다, 취소, 취소해, 취소해 주세요, 하지마, 하지 마, 하지 마세요, 하지마세요, \
         절대 안돼",
    ),
    (
        Gist::Doubt,
        "괜찮아, 괜찮아요, 괜찮습니다, 문제없어, 문제없어요, 모르겠어, 모르겠어요, 모르겠습니다, 글쎄, 글쎄요, 아마, 아마도, 나중에, 잠깐, 잠시만요",
    ),
    (Gist::But, "하지만, 그런데, 근데, 단, 만"),
    (Gist::Filler, "이번만, 한 번만, 지금"),
];
