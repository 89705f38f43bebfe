//! The words that people answer with, in the languages of user interfaces.
//!
//! A phrase stands here as it is written; letter case, accents and punctuation are ignored. What is not here is not
//! understood, so a word belongs here only if it says the same in every language of the table.

use std::{collections::HashMap, sync::LazyLock};

use crate::search::fold;

/// What a phrase does in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Agrees.
    Yes,
    /// Agrees by naming what is to be done. Behind a no it may also begin what to do instead.
    Go,
    /// Agrees from now on.
    Always,
    /// Refuses, whatever follows.
    No,
    /// Refuses where it stands for itself: "no" also begins "no complaints", and "don't" also begins "don't wait".
    Bare,
    /// Begins what is to be different.
    Change,
    /// Limits what was said before it.
    But,
    /// Neither agrees nor refuses.
    Doubt,
    /// Asks something back.
    Question,
    /// Says nothing by itself.
    Filler,
    /// A mark between two parts of a sentence.
    Pause,
}

/// The longest phrase, in words.
pub(super) const LONGEST: usize = 6;
/// The longest phrase of a script without spaces, in characters.
pub(super) const LONGEST_UNSPACED: usize = 16;

const PHRASES: &[(Word, &str)] = &[
    // English
    (
        Word::Yes,
        "yes, y, yep, yup, yeah, yea, yes yes, ok, okay, okey, okie, oke, o k, k, kk, sure, sure thing, surely, alright, all right, \
         of course, certainly, absolutely, definitely, affirmative, go ahead, go for it, please do, proceed, by all means, \
         i agree, agree, agreed, agrees, i approve, approve, approved, approves, i allow it, allow, allowed, allows, accept, \
         accepted, accepts, confirm, confirmed, confirms, permit, permitted, grant, granted, i do, i am sure, im sure, \
         yes i am, you may, you can, you have my permission, permission granted, lgtm, roger, aye, true, allow once, \
         approve once, let it run, make it so, ship it",
    ),
    (
        Word::Go,
        "go, do it, do that, do this, just do it, run it, run that, send it, continue, carry on, go on, good, all good, great, \
         perfect, fine, right, correct, thats right, that is right, thats correct, that is correct, thats fine, that is fine, \
         its fine, it is fine, thats ok, that is ok, its ok, it is ok, thats good, that is good, thats okay, that is okay, \
         is fine, is ok, is okay, sounds good, sounds great, looks good, looks great, looks fine, looks right, works for me, \
         fine by me, fine with me, ok with me, lets go, lets do it, lets do that, i want that, i want it, i want this",
    ),
    (
        Word::Always,
        "always, always allow, allow always, always approve, approve always, every time, from now on, allow all session, \
         allow for session, allow for this session, allow for the session, allow this session, for this session, \
         for the session, for session, for the rest of the session, for the whole session, this session, \
         dont ask again, dont ask me again, do not ask again, do not ask me again",
    ),
    (
        Word::Bare,
        "no, n, dont, do not, no dont, stop, stop it, skip, skip it, no thanks, no thank you, no way, never, negative, deny, denied, denies, reject, rejected, \
         rejects, refuse, refused, refuses, decline, declined, declines, disallow, disallowed, forbid, forbidden, veto, false, \
         cancel, cancelled, canceled, cancels, abort, not now, not yet, not ok, not okay, not this time, not allowed, \
         rather not, id rather not, i would rather not, better not, id prefer not to, of course not, \
         certainly not, absolutely not, definitely not, hell no, dont do it, \
         dont do that, dont do this, do not do it, do not do that, do not do this, dont run it, do not run it, dont send it, \
         do not send it, dont allow, do not allow, dont allow it, do not allow it, dont proceed, do not proceed, never allow, \
         i disagree, disagree, i refuse, i dont agree, i do not agree, i dont approve, i do not approve, i dont want that, \
         i do not want that, i dont want this, i do not want this, i dont want it, i do not want it",
    ),
    (
        Word::Doubt,
        "no problem, no problems, no prob, no worries, no worry, no objection, no objections, no issue, no issues, no idea, \
         no clue, no doubt, no matter, no rush, no hurry, no need, no comment, no concerns, no biggie, no preference, \
         no opinion, no change, no changes, no edits, no changes needed, no change needed, no question, never mind, \
         nevermind, never ask, dont know, i dont know, i do not know, do not know, dont care, i dont care, dont mind, \
         i dont mind, dont worry, do not worry, dont wait, dont stop, dont hesitate, dont ask, not sure, im not sure, \
         i am not sure, unsure, maybe, perhaps, possibly, probably, i guess, i think so, i suppose, hm, hmm, hmmm, \
         wait, hold on, later, it depends, depends",
    ),
    (
        Word::Change,
        "make, change, use, shorten, rewrite, rephrase, reword, add, remove, replace, drop, fix, rename, move, put, leave out, \
         keep it, too long, too short, too much, shorter, longer, instead, try",
    ),
    (Word::But, "but, only, just, except, unless, if, however, provided, as long as"),
    (
        Word::Filler,
        "please, pls, thanks, thank you, thx, well, it, that, this, now, right now, then, so, i, you, we, they, he, she, the, \
         user, client, customer, person, human, says, said, has, have, answered, answers, replied, replies, clicked, pressed, \
         chose, choice, decision, answer, once, just once, only once, this time, just this once, just this time, \
         only this time, only this once, for now, with it, with that, with this, to it, to that, to this, for me, to me, call, \
         the call, this call, very, much, do, yes do",
    ),
    // A no that can stand before any text, in all languages. "No" is not one: it also begins "no problem".
    (
        Word::No,
        "nope, nah, no no, nein, nein nein, neen, nee, non non, não não, нет нет, ні, hayır, hayır hayır, nie nie, nej, nei, いいえ, \
         いえ, 아니요, 아니오, 아뇨",
    ),
    // German
    (
        Word::Yes,
        "ja, jawohl, jo, jep, jup, joa, ja ja, ja bitte, ja gerne, ja klar, na klar, aber klar, aber ja, klar, klaro, natürlich, \
         natuerlich, selbstverständlich, selbstverstaendlich, sicher, gern, gerne, sehr gerne, in ordnung, einverstanden, \
         ich bin einverstanden, erlaube, erlauben, erlaubt, erlaube es, ich erlaube es, ich erlaube das, genehmigt, \
         genehmige, genehmigen, ich genehmige es, bestätigt, bestätige, zugelassen, zulassen, zustimmen, ich stimme zu, \
         stimme zu, freigegeben, freigeben, nur zu, leg los, los, okidoki, \
         einmal erlauben, wahr",
    ),
    (
        Word::Go,
        "mach das, mach es, machs, mach weiter, mach mal, passt, passt so, gut, sehr gut, genau, stimmt, alles gut, sieht gut aus, klingt gut, weiter, so machen",
    ),
    (
        Word::Always,
        "immer, immer erlauben, immer zulassen, für diese sitzung, fuer diese sitzung, diese sitzung, \
         für diese sitzung erlauben, ab jetzt immer",
    ),
    (
        Word::Bare,
        "ne, nein danke, nie, niemals, ablehnen, abgelehnt, abbrechen, verweigern, verweigert, verboten, \
         nicht erlauben, nicht erlaubt, nicht einverstanden, auf keinen fall, auf gar keinen fall, lieber nicht, besser nicht, \
         bitte nicht, jetzt nicht, noch nicht, natürlich nicht, natuerlich nicht, sicher nicht, klar nicht, \
         mach das nicht, mach es nicht, falsch",
    ),
    (Word::Doubt, "vielleicht, später, warte, keine ahnung, weiss nicht, nicht sicher"),
    (
        Word::Change,
        "mach, ändere, aendere, kürzer, kuerzer, nimm, ersetze, bitte kürzer, zu lang, zu kurz, streiche, füge",
    ),
    (Word::But, "aber, nur, ausser, wenn, falls, sofern, allerdings"),
    (
        Word::Filler,
        "bitte, danke, es, das, dies, jetzt, einmal, nur einmal, diesmal, nur diesmal, nur dieses mal, dieses mal",
    ),
    // French
    (
        Word::Yes,
        "oui, ouais, oui oui, d'accord, je suis d'accord, bien sûr, bien sur que oui, certainement, volontiers, vas-y, allez-y, \
         autoriser, autorise, autorisé, j'autorise, approuver, approuve, approuvé, j'approuve, accepter, accepte, accepté, \
         j'accepte, confirmer, confirme, confirmé, je confirme, fais-le, faites-le, vrai",
    ),
    (
        Word::Go,
        "parfait, c'est bon, c'est bien, c'est parfait, très bien, exact, continue, continuez, ça marche",
    ),
    (Word::Always, "toujours, toujours autoriser, pour cette session, autoriser pour cette session"),
    (
        Word::Bare,
        "non, nan, non merci, jamais, refuser, refuse, refusé, je refuse, rejeter, rejeté, interdire, annuler, annule, \
         pas d'accord, pas question, surtout pas, plutôt pas, pas maintenant, pas encore, bien sûr que non, certainement pas, \
         faux",
    ),
    (Word::Doubt, "peut-être, plus tard, attends, attendez, pas sûr, je ne sais pas"),
    (
        Word::Change,
        "plus court, trop long, remplace, remplacez, ajoute, ajoutez, enlève, change, changez, raccourcis",
    ),
    (Word::But, "mais, seulement, sauf, à condition"),
    (
        Word::Filler,
        "s'il te plaît, s'il vous plaît, merci, maintenant, cette fois, une fois, seulement cette fois",
    ),
    // Spanish, and what Italian and Portuguese write alike
    (
        Word::Yes,
        "sí, si si, sí claro, claro, claro que sí, por supuesto, vale, de acuerdo, estoy de acuerdo, adelante, hazlo, hágalo, \
         dale, permitir, permite, permitido, aprobar, aprobado, apruebo, aceptar, acepto, aceptado, autorizar, autorizo, \
         autorizado, confirmar, confirmo, confirmado, procede, proceda, cierto, verdadero",
    ),
    (Word::Go, "está bien, bien, muy bien, perfecto, correcto, continúa, sigue, bueno"),
    (Word::Always, "siempre, permitir siempre, para esta sesión, permitir en esta sesión"),
    (
        Word::Bare,
        "no gracias, nunca, jamás, denegar, denegado, rechazar, rechazado, rechazo, cancelar, cancela, cancelado, prohibir, \
         de ninguna manera, mejor no, para nada, claro que no, por supuesto que no, ahora no, todavía no, falso",
    ),
    (
        Word::Doubt,
        "no hay problema, no pasa nada, no importa, no sé, no lo sé, no estoy seguro, no estoy segura, quizás, quizá, tal vez, espera, luego",
    ),
    (Word::Change, "más corto, demasiado largo, cambia, cámbialo, quita, añade, usa, acorta"),
    (Word::But, "pero, sólo, solamente, excepto, salvo"),
    (Word::Filler, "por favor, gracias, ahora, esta vez, solo esta vez, una vez, solo una vez"),
    // Portuguese
    (
        Word::Yes,
        "sim, sim sim, com certeza, claro que sim, pode, podes, pode ser, pode fazer, pode sim, vá em frente, faça, faz isso, \
         concordo, aprovar, aprovado, aprovo, aprove, aceitar, aceito, aceite, permitido, beleza, certo, pode prosseguir, \
         prossiga, verdadeiro",
    ),
    (Word::Go, "tudo bem, está certo, perfeito, continue, ótimo"),
    (Word::Always, "permitir sempre, nesta sessão, para esta sessão"),
    (
        Word::Bare,
        "não, não obrigado, não obrigada, nao, negar, negado, rejeitar, rejeitado, recusar, recusado, recuso, \
         de jeito nenhum, melhor não, claro que não, agora não, ainda não",
    ),
    (
        Word::Doubt,
        "não há problema, não tem problema, sem problema, não sei, não tenho certeza, não importa, talvez, depois, espere",
    ),
    (Word::Change, "mais curto, muito longo, mude, troque, remova, adicione, use, encurte"),
    (Word::But, "mas, somente, apenas, exceto"),
    (Word::Filler, "obrigado, obrigada, agora, desta vez, uma vez, só desta vez"),
    // Italian
    (
        Word::Yes,
        "sì sì, certo, certo che sì, certamente, va bene, vai, vai avanti, vai pure, fallo, fai pure, procedi, d'accordo, \
         sono d'accordo, consenti, consentito, approva, approvato, approvo, accetta, accetto, accettato, autorizzo, autorizza, \
         conferma, confermo, confermato, assolutamente sì, vero",
    ),
    (Word::Go, "perfetto, esatto, giusto, tutto bene, va benissimo, continua"),
    (Word::Always, "sempre, consenti sempre, per questa sessione"),
    (
        Word::Bare,
        "no grazie, mai, nega, negato, rifiuta, rifiuto, rifiutato, annulla, annullato, assolutamente no, meglio di no, \
         certo che no, per niente, non ora, non adesso, non ancora, non farlo",
    ),
    (
        Word::Doubt,
        "non c'è problema, nessun problema, non so, non lo so, non sono sicuro, non sono sicura, non importa, forse, dopo, aspetta",
    ),
    (Word::Change, "più corto, troppo lungo, cambia, togli, aggiungi, sostituisci, accorcia"),
    (Word::But, "ma, però, soltanto, tranne, a condizione"),
    (Word::Filler, "per favore, grazie, adesso, ora, questa volta, solo questa volta, una volta"),
    // Dutch
    (
        Word::Yes,
        "jawel, ja hoor, ja graag, ja prima, ga je gang, ga door, ga maar, ga verder, doe maar, doe het, doe het maar, is goed, \
         dat is goed, prima, akkoord, zeker, zeker weten, natuurlijk, graag, toestaan, toegestaan, sta toe, goedkeuren, \
         goedgekeurd, keur goed, bevestigd",
    ),
    (Word::Go, "goed, heel goed, klopt, ziet er goed uit, klinkt goed"),
    (Word::Always, "altijd, altijd toestaan, voor deze sessie"),
    (
        Word::Bare,
        "nee bedankt, nee dank je, nooit, weigeren, geweigerd, weiger, afwijzen, afgewezen, annuleren, annuleer, \
         liever niet, beter niet, doe maar niet, niet doen, zeker niet, natuurlijk niet, nu niet, nog niet, niet toestaan",
    ),
    (Word::Doubt, "geen probleem, misschien, later, wacht, geen idee, weet niet"),
    (Word::Change, "maak, verander, korter, te lang, vervang, voeg"),
    (Word::But, "maar, alleen, behalve, mits, als"),
    (
        Word::Filler,
        "alsjeblieft, alstublieft, dank je, dank u, bedankt, nu, deze keer, alleen deze keer, één keer",
    ),
    // Russian and Ukrainian
    (
        Word::Yes,
        "да, да да, ага, угу, конечно, да конечно, хорошо, ладно, ок, окей, давай, давайте, да давай, разрешаю, разрешить, \
         разреши, разрешено, согласен, согласна, одобряю, одобрить, одобрено, подтверждаю, подтвердить, можно, да можно, \
         так, звичайно, добре, дозволяю, дозволити, згоден, згодна, истина",
    ),
    (Word::Go, "верно, отлично, продолжай, продолжайте, всё хорошо, подходит, делай, делайте"),
    (Word::Always, "всегда, всегда разрешать, на эту сессию, на всю сессию, завжди"),
    (
        Word::Bare,
        "нет, нет спасибо, не надо, не нужно, не стоит, нельзя, никогда, запретить, запрещаю, запрещено, отклонить, \
         отклоняю, отклонено, отказать, отказываю, отмена, отменить, отмени, конечно нет, лучше не надо, не сейчас, пока нет, \
         не согласен, не согласна, не разрешаю, не треба, заборонити, ложь",
    ),
    (
        Word::Doubt,
        "нет проблем, без проблем, не знаю, не уверен, не уверена, может быть, возможно, позже, потом, подожди, подождите",
    ),
    (Word::Change, "сделай, сделайте, измени, измените, короче, убери, добавь, замени, слишком"),
    (Word::But, "но, только, кроме, если, однако"),
    (
        Word::Filler,
        "пожалуйста, спасибо, сейчас, это, в этот раз, один раз, только один раз, будь ласка, дякую",
    ),
    // Turkish
    (
        Word::Yes,
        "evet, evet evet, tamam, tamamdır, olur, tabii, tabi, tabii ki, elbette, onayla, onaylıyorum, onaylandı, onay, izin ver, \
         izin veriyorum, kabul, kabul ediyorum, devam et, devam, yap, doğru",
    ),
    (Word::Go, "güzel, iyi, çok iyi, harika, uygun"),
    (Word::Always, "her zaman, her zaman izin ver, bu oturum için"),
    (
        Word::Bare,
        "hayır teşekkürler, olmaz, reddet, reddediyorum, reddedildi, iptal, iptal et, izin verme, asla, yapma, \
         şimdi değil, henüz değil, yanlış",
    ),
    (Word::Doubt, "sorun değil, sorun yok, bilmiyorum, emin değilim, belki, sonra, bekle"),
    (Word::Change, "değiştir, kısalt, ekle, çıkar, daha kısa, çok uzun"),
    (Word::But, "ama, fakat, ancak, sadece, yalnızca, eğer"),
    (Word::Filler, "lütfen, teşekkürler, teşekkür ederim, şimdi, bu sefer, bir kez, sadece bu sefer"),
    // Polish and Czech
    (
        Word::Yes,
        "tak, tak tak, jasne, oczywiście, pewnie, dobrze, dobra, zgoda, zgadzam się, zezwól, zezwalam, zezwolono, zatwierdź, \
         zatwierdzam, zatwierdzono, akceptuję, akceptuj, potwierdzam, śmiało, proszę bardzo, zrób to, kontynuuj, można, ano, \
         jistě, samozřejmě, povolit, povoluji, schválit, souhlasím, prawda",
    ),
    (Word::Go, "świetnie, super, w porządku, idealnie, dalej"),
    (Word::Always, "zawsze, zawsze zezwalaj, na tę sesję, vždy"),
    (
        Word::Bare,
        "nie, nie dziękuję, nigdy, odmów, odmawiam, odrzuć, odrzucam, odrzucono, anuluj, zabroń, oczywiście że nie, \
         lepiej nie, nie teraz, jeszcze nie, nie zgadzam się, nie zezwalam, nie rób tego, odmítnout, zamítnout, zrušit, nepovolit, fałsz",
    ),
    (
        Word::Doubt,
        "nie ma problemu, nie ma sprawy, nie wiem, nie jestem pewien, nie jestem pewna, może, być może, później, poczekaj",
    ),
    (Word::Change, "zmień, skróć, dodaj, usuń, krócej, za długie, zamień"),
    (Word::But, "ale, tylko, oprócz, jeśli, jeżeli"),
    (
        Word::Filler,
        "proszę, dziękuję, dzięki, teraz, tym razem, tylko tym razem, jeden raz, raz, prosím, děkuji",
    ),
    // Swedish, Danish and Norwegian
    (
        Word::Yes,
        "ja tack, ja takk, javisst, visst, självklart, selvfølgelig, naturligtvis, okej, tillåt, tillad, tillat, godkänn, godkend, godkjenn, kör, gärna, gerne",
    ),
    (Word::Always, "alltid, altid"),
    (
        Word::Bare,
        "nej tack, nej tak, nei takk, aldrig, aldri, neka, avslå, afvis, avvis, avbryt, afbryd, helst inte",
    ),
    (Word::Filler, "tack, tak for det, takk, nu, nå"),
    // Chinese
    (
        Word::Yes,
        "是, 是的, 是啊, 对, 对的, 對, 對的, 好, 好的, 好啊, 好吧, 好呀, 可以, 可以的, 行, 行的, 嗯, 嗯嗯, 当然, 當然, 当然可以, 當然可以, 同意, 我同意, \
         允许, 允許, 批准, 准许, 許可, 许可, 确认, 確認, 确定, 確定, 没错, 沒錯, 接受, 通过, 通過, 执行, 執行, 执行吧, 做吧, 去做吧",
    ),
    (Word::Go, "继续, 繼續, 请继续, 請繼續, 继续吧, 繼續吧, 发送吧, 没意见"),
    (Word::Always, "总是, 總是, 始终允许, 始終允許, 总是允许, 總是允許, 本次会话允许, 本次会话, 一直允许"),
    (
        Word::Bare,
        "不, 不是, 不行, 不可以, 不要, 不同意, 不允许, 不允許, 不好, 不对, 不能, 不用, 不用了, 不必, 否, 拒绝, 拒絕, 取消, 别, 别这样, 禁止, 驳回, 不批准, 不可",
    ),
    (
        Word::Doubt,
        "没问题, 沒問題, 不知道, 不确定, 不確定, 不好意思, 不要紧, 不要緊, 不客气, 不错, 不錯, 不清楚, 也许, 也許, 可能, 可能吧, 等等, 等一下, 稍后, 没关系, 不一定",
    ),
    (Word::But, "但, 但是, 不过, 不過, 只, 只要, 只能, 除了, 如果"),
    (Word::Filler, "请, 請, 谢谢, 謝謝, 吧, 了, 现在, 現在, 这次, 這次, 一次, 仅此一次"),
    // Japanese
    (
        Word::Yes,
        "はい, はいはい, うん, ええ, いいよ, いいですよ, オーケー, オッケー, もちろん, もちろんです, 了解, 了解です, 了解しました, 承知しました, 許可する, 許可します, \
         承認, 承認する, 承認します, 同意します, 同意する, どうぞ, 進めて, 進めてください, お願い, お願いします, おねがいします, 実行して, 実行してください, 続けて, 続けてください",
    ),
    (Word::Always, "常に許可, 常に, 今後も許可, このセッションでは許可, このセッション"),
    (
        Word::Bare,
        "いや, だめ, だめです, ダメ, ダメです, 駄目, 駄目です, やめて, やめてください, 拒否, 拒否する, 拒否します, 却下, 却下します, キャンセル, \
         中止, 中止して, 許可しない, 許可しません, しないで, しないでください, 遠慮します",
    ),
    (
        Word::Doubt,
        "いいです, 結構です, 大丈夫, 大丈夫です, 問題ない, 問題ありません, 問題ないです, わからない, わかりません, 分からない, 分かりません, たぶん, 多分, 後で, ちょっと待って, 待って",
    ),
    (Word::But, "でも, ただ, ただし, しかし, だけど, だけ, のみ"),
    (Word::Filler, "です, ください, それで, ありがとう, ありがとうございます, 今回, 今回は, 一度, 今回だけ"),
    // Korean
    (
        Word::Yes,
        "네, 네네, 예, 응, 그래, 그래요, 그럼요, 물론, 물론이죠, 물론입니다, 좋아, 좋아요, 좋습니다, 오케이, 승인, 승인합니다, 승인해, 승인해 주세요, 허용, 허용합니다, \
         허용해, 허용해 주세요, 허락합니다, 동의, 동의합니다, 확인, 진행해, 진행해주세요, 진행해 주세요, 진행하세요, 계속해, 계속해 주세요, 해줘, 해 주세요, 부탁해요, 부탁합니다",
    ),
    (Word::Always, "항상, 항상 허용, 이 세션 동안, 이번 세션"),
    (
        Word::Bare,
        "아니, 안돼, 안 돼, 안돼요, 안 돼요, 안됩니다, 안 됩니다, 싫어, 싫어요, 거부, 거부합니다, 거절, 거절합니다, 취소, 취소해, 취소해 주세요, \
         하지마, 하지 마, 하지 마세요, 하지마세요, 절대 안돼",
    ),
    (
        Word::Doubt,
        "괜찮아, 괜찮아요, 괜찮습니다, 문제없어, 문제없어요, 모르겠어, 모르겠어요, 모르겠습니다, 글쎄, 글쎄요, 아마, 아마도, 나중에, 잠깐, 잠시만요",
    ),
    (Word::But, "하지만, 그런데, 근데, 단, 만"),
    (Word::Filler, "감사합니다, 고마워, 고마워요, 이번만, 한 번만, 지금"),
];

/// Signs that stand for a word.
const SIGNS: &[(Word, &str)] = &[
    (Word::Yes, "👍👌✅✔☑🆗⭕🙆"),
    (Word::No, "👎❌✖✗✘🚫⛔🙅🛑"),
    (Word::Doubt, "🤷🤔😕"),
    (Word::Question, "?？؟¿❓❔"),
];

/// The phrases, folded, their words joined by a space.
static TABLE: LazyLock<HashMap<String, Word>> = LazyLock::new(|| {
    let phrases = PHRASES.iter().flat_map(|(word, list)| list.split(',').map(|phrase| (*word, phrase)));
    let mut table = HashMap::new();
    for (word, phrase) in phrases {
        // The first language of the table that has a phrase says what it is.
        table.entry(plain(phrase).join(" ")).or_insert(word);
    }
    table
});

/// What a phrase is, its words folded and joined by a space.
pub(super) fn word_of(phrase: &str) -> Option<Word> {
    TABLE.get(phrase).copied()
}

/// The sign that a character is, if it stands for a word.
pub(super) fn sign(c: char) -> Option<Word> {
    SIGNS.iter().find(|(_, signs)| signs.contains(c)).map(|(word, _)| *word)
}

/// Whether a character ends a part of a sentence, by what stands before and behind it.
pub(super) fn pauses(before: Option<char>, c: char, behind: Option<char>) -> bool {
    let open = |next: Option<char>| next.is_none_or(|next| !next.is_alphanumeric());
    match c {
        ',' | ';' | '!' | '\n' | '(' | '\u{2013}' | '\u{2014}' | '，' | '；' | '：' | '。' | '、' | '！'
        | '…' => true,
        '.' | ':' => open(behind),
        '-' => open(before) && open(behind),
        _ => false,
    }
}

/// Whether a character is of a script that is written without spaces.
pub(super) fn unspaced(c: char) -> bool {
    matches!(u32::from(c), 0x3040..=0x30FF | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF)
}

/// The words of a text, folded; apostrophes fall away, and all other punctuation separates.
pub(super) fn plain(text: &str) -> Vec<String> {
    fold(text)
        .replace(['\'', '’', 'ʼ', '`', '´'], "")
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_phrase_means_two_things() {
        let mut first: HashMap<String, Word> = HashMap::new();
        for (word, list) in PHRASES {
            for phrase in list.split(',') {
                let folded = plain(phrase).join(" ");
                assert!(!folded.is_empty() && folded.split(' ').count() <= LONGEST, "{phrase}");
                assert!(!folded.contains(unspaced) || folded.chars().count() <= LONGEST_UNSPACED, "{phrase}");
                let before = *first.entry(folded.clone()).or_insert(*word);
                // Two kinds of assent are one; so are two that stop an assent from being one.
                let kind = |word: Word| match word {
                    Word::Yes | Word::Go => 1,
                    Word::But | Word::Doubt | Word::Change => 2,
                    _ => 10 + word as usize,
                };
                assert!(kind(before) == kind(*word), "{phrase}: {before:?} and {word:?}");
            }
        }
    }
}
